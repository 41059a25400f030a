"""Fixtures shared by the tests."""

import json
import sys
from pathlib import Path

import hypothesis
import pytest

import widthwise as ww

DATA = Path(__file__).parent / "data"

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


sys.path.insert(0, str(Path(__file__).parent / "browser"))


@pytest.fixture(scope="module")
def server():
    """The explorer, as (address, process)."""
    from explorer_session import running_server

    with running_server() as (address, process):
        yield address, process


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium."""
    from explorer_session import ARGUMENTS, chromium

    executable = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=executable, args=list(ARGUMENTS))
        yield opened
        opened.close()
