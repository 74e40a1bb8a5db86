"""Cases of tests that stand in tables: a YAML file beside the test's own, `test_x.yaml` beside `test_x.py`.

Under the name of a test, a table has the test's parameters as its key and one case a line:

    test_sums:
      one, other, sum:
      - [1, 2, 3]

Cases with names of their own are a mapping from those to the rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

Test = TypeVar("Test", bound=Callable[..., None])


@cache
def read_tables(path: Path) -> Any:
    return yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)


def yaml_cases(test: Test) -> Test:
    """Run a test once for each case of its table; with several tables, for each combination."""
    for names, rows in read_tables(Path(inspect.getfile(test)).with_suffix(".yaml"))[test.__name__].items():
        named = rows if isinstance(rows, dict) else None
        test = pytest.mark.parametrize(names, rows if named is None else named.values(), ids=named)(test)
    return test


def put(record: Any, place: list[Any], value: Any) -> None:
    """Write a value at a place of a record, which is its keys and indices; GONE takes away what is there."""
    *way, last = place
    for key in way:
        record = record[key]
    if value == "GONE":
        del record[last]
    else:
        record[last] = value
