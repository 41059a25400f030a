"""`widthwise doctor`, and the versions that a bug report needs."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from widthwise.cli.options import OutputOptions
from widthwise.cli.output import Records, check_output, emit
from widthwise.extras import EXTRAS, missing_modules, package_of
from widthwise.version import __version__

#: Packages without which nothing works, jaxlib with them: jax is of no use with another one than its own.
CORE = ("jax", "jaxlib", "numpy", "scipy", "xarray", "h5netcdf", "h5py", "rich", "typer")
#: Bytes below which even small examples may be refused.
LITTLE_MEMORY = 1 << 30


@dataclass(frozen=True)
class CheckResult:
    """What one check found, and what to do about it: nothing, unless something is wrong or could be better."""

    check: str
    found: str
    remedy: str = ""
    wrong: bool = False

    @property
    def verdict(self) -> str:
        return "wrong" if self.wrong else "note" if self.remedy else "ok"


def versions() -> str:
    """This package, Python, the system and every package that matters, one a line."""
    lines = [f"widthwise {__version__}", f"Python {platform.python_version()} on {platform.platform()}"]
    optional = {package_of(module) for modules in EXTRAS.values() for module in modules}
    for package in (*CORE, *sorted(optional)):
        lines.append(f"{package} {_version_of(package) or 'not installed'}")
    return "\n".join(lines)


def doctor(output: OutputOptions) -> int:
    """Check this installation: packages, jax and its devices, precision, extras, memory, threads, files.

    Exits with code 1 if something is wrong.
    """
    check_output(output)
    found = [finding for check in CHECKS for finding in _findings_of(check)]
    wrong = sum(finding.wrong for finding in found)
    rows = [(finding.check, finding.verdict, finding.found, finding.remedy) for finding in found]
    closing = f"{wrong} of {len(found)} checks found something wrong." if wrong else "Nothing is wrong."
    emit(Records(("check", "verdict", "found", "what to do"), rows, (closing,), keys=2), output)
    return int(wrong > 0)


def _findings_of(check: Callable[[], Iterator[CheckResult]]) -> Iterator[CheckResult]:
    try:
        yield from check()
    except Exception as error:  # whatever it is, it is what the doctor was called for
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        yield CheckResult(check.__name__, reason, "Report this with what `widthwise --version` prints.", wrong=True)


def python() -> Iterator[CheckResult]:
    good = sys.version_info >= (3, 11)
    yield CheckResult("python", platform.python_version(), "" if good else "Use Python 3.11 or newer.", not good)


def packages() -> Iterator[CheckResult]:
    """Against what the installed distribution asks for."""
    from packaging.requirements import Requirement

    try:
        required = [Requirement(line) for line in metadata.requires("widthwise") or ()]
    except metadata.PackageNotFoundError:
        required = []
        yield CheckResult(
            "widthwise", f"{__version__}, not installed as a package", "pip install widthwise, or pip install ."
        )
    asked = {one.name: one.specifier for one in required if one.marker is None}
    for name in CORE:
        version, specifier = _version_of(name), asked.get(name)
        if version is None:
            yield CheckResult(name, "not installed", f"pip install {name}", wrong=True)
        elif specifier is not None and not specifier.contains(version, prereleases=True):
            yield CheckResult(name, version, f"pip install '{name}{specifier}'", wrong=True)
        else:
            yield CheckResult(name, version)
    if _version_of("jax") != _version_of("jaxlib"):
        yield CheckResult("jax and jaxlib", "of different versions", "pip install --upgrade jax jaxlib", wrong=True)


def jax() -> Iterator[CheckResult]:
    """It computes, in 64-bit precision, on the device that is there."""
    import jax
    import jax.numpy as jnp

    from widthwise import precision  # noqa: F401  asks jax for 64 bits
    from widthwise.devices import missing_device

    if missing := missing_device():
        yield CheckResult("devices", f"none: {missing}", "unset JAX_PLATFORMS, or install a jaxlib for it.", wrong=True)
        return
    devices = ", ".join(str(device) for device in jax.devices())
    unused = jax.default_backend() == "cpu" and Path("/proc/driver/nvidia").exists()
    install = "pip install 'jax[cuda12]' to compute on the NVIDIA device of this machine." if unused else ""
    yield CheckResult("devices", f"{jax.default_backend()} ({devices})", install)
    third = jax.jit(lambda x: x / 3)(jnp.asarray(1.0))
    exact = third.dtype == "float64" and float(third) == 1 / 3
    yield CheckResult("x64", f"1/3 = {third!s} ({third.dtype})", "" if exact else "unset JAX_ENABLE_X64.", not exact)


def extras() -> Iterator[CheckResult]:
    for extra in EXTRAS:
        lacking = [package_of(module) for module in missing_modules(extra)]
        if lacking:
            yield CheckResult(
                f"extra {extra}", f"without {', '.join(lacking)}", f"pip install 'widthwise[{extra}]' if wanted"
            )
        else:
            yield CheckResult(f"extra {extra}", "complete")
    if find_spec("neural_tangents") is not None:
        yield CheckResult(
            "neural_tangents", "installed", "Its kernels are in ww.readers.stax_kernels, on a current jax."
        )


def memory() -> Iterator[CheckResult]:
    from widthwise.memory import available_bytes, readable

    free = available_bytes()
    remedy = "" if free >= LITTLE_MEMORY else "Close other programs: what does not fit is refused."
    yield CheckResult("memory", f"{readable(free)} available", remedy)


def threads() -> Iterator[CheckResult]:
    from widthwise.devices import usable_cores

    machine, usable = os.cpu_count() or 1, usable_cores()
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked and not asked.isdigit():
        yield CheckResult("threads", f"OMP_NUM_THREADS={asked!r}", "Set it to a number, or unset it.", wrong=True)
        return
    fewer = f"OMP_NUM_THREADS={asked}, or the processors given to this process, leave some unused."
    yield CheckResult("threads", f"{usable} of {machine} processors", fewer if usable < machine else "")


def files() -> Iterator[CheckResult]:
    """A NetCDF file is written and read, as results are."""
    import xarray as xr

    from widthwise.results.store import load, save

    dataset = xr.Dataset({"numbers": ("a", [1.0, 2.0])})
    with tempfile.TemporaryDirectory() as folder:
        same = load(save(dataset, Path(folder) / "numbers.nc")).identical(dataset)
    again = "pip install --upgrade xarray h5netcdf h5py"
    yield CheckResult("files", f"NetCDF in {tempfile.gettempdir()}", "" if same else again, not same)


def programs() -> Iterator[CheckResult]:
    """Where compiled programs are kept between processes."""
    import jax

    from widthwise import precision  # noqa: F401  has jax keep them
    from widthwise.program_cache import SWITCH

    place = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    remedy = f"Programs are compiled in every process. Name a folder that can be written to in {SWITCH}."
    yield CheckResult("compiled programs", f"kept in {place}" if place else "not kept", "" if place else remedy)


CHECKS = (python, packages, jax, extras, memory, threads, files, programs)


def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
