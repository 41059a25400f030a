"""Fixtures shared by the tests."""

import atexit
import json
import os
import shutil
import tempfile
from pathlib import Path

import hypothesis
import pytest

import widthwise as ww

DATA = Path(__file__).parent / "data"

# Many tests start processes of their own, which compile the same programs again: those of one worker share them.
_COMPILED = tempfile.mkdtemp(prefix="widthwise-compiled-")
os.environ |= {"JAX_COMPILATION_CACHE_DIR": _COMPILED, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2"}
atexit.register(shutil.rmtree, _COMPILED, ignore_errors=True)

hypothesis.settings.register_profile("widthwise", deadline=None, max_examples=25, derandomize=True)
hypothesis.settings.load_profile("widthwise")


def load_cases(key: str) -> list[dict]:
    return json.loads((DATA / "reference.json").read_text())[key]


def network(case: dict) -> ww.MLP:
    names = ("widths", "activation", "C_b", "C_W", "lambda_b", "lambda_W")
    return ww.MLP(**{name: case[name] for name in names})


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace):
    doctest_namespace["ww"] = ww
