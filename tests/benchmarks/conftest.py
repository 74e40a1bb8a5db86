"""The programs of `benchmarks/`, for tests that run them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def load(name: str) -> ModuleType:
    """The program of this name, from its file: a folder of tests may have the same name."""
    spec = spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    program = module_from_spec(spec)
    sys.modules[spec.name] = program
    spec.loader.exec_module(program)
    return program


@pytest.fixture(scope="module")
def benchmark() -> Iterator[Callable[[str], ModuleType]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))  # programs share modules, such as `common`
        yield load


@pytest.fixture(scope="module")
def program(request: pytest.FixtureRequest, benchmark: Callable[[str], ModuleType]) -> ModuleType:
    """The program that the file of tests is named after."""
    return benchmark(request.path.stem.removeprefix("test_"))
