"""The programs of `benchmarks/`, for tests that run them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from tests.samples import sample

from selfverify.evaluation.samples import StoredSample

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


@pytest.fixture
def refused(program: ModuleType, capsys: pytest.CaptureFixture[str]) -> Callable[[list[str]], str]:
    """``refused(words)``: what the program says, in one line, when it does not run with these words."""

    def run(words: list[str]) -> str:
        with pytest.raises(SystemExit):
            program.main(words)
        return " ".join(capsys.readouterr().err.split())

    return run


def turned(pairs: str) -> list[StoredSample]:
    """A problem for each pair: is the first turn right, is the second."""
    return [
        sample(f"p{n}", 0, second == "1", None, rewards={"correct_1": float(first)})
        for n, (first, second) in enumerate(pairs.split())
    ]


def counted(right: str, score: float, other: float) -> list[StoredSample]:
    """Problems of two samples: how many are right, such as ``"012"``, and the scores of right and wrong."""
    return [
        sample(f"p{p}", n, n < int(count), score if n < int(count) else other)
        for p, count in enumerate(right)
        for n in range(2)
    ]
