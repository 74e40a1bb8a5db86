"""The settings of `selfverify solve` and `selfverify serve`: what does not go together is refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from selfverify.core.config import option_name
from selfverify.serving.config import ServeConfig, SolveConfig

HERE = {"backend": {"model": "m"}}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"asked": {}}, "a question is missing"),
        ({"asked": {"question": "x", "save_image": "x.png"}}, "a question is missing"),
        ({"asked": {"question": "x", "task": "digits-pick"}}, "--task brings its own"),
        ({"asked": {"image": ["x.png"], "task": "digits-pick"}}, "--task brings its own"),
        ({"answerer": {"server": "s"}, "drawing": {"turns": 2}}, "--turns 2 needs a model"),
        ({"answerer": {"server": "s"}, "choosing": {"n": 257}}, "at most 256"),
        ({"choosing": {"n": 1025}}, "1024"),
        ({"choosing": {"strategy": "oracle"}}, "analysis only"),
        ({"choosing": {"calibration": "c", "stop": "beta"}}, "full sets of samples"),
        ({"choosing": {"calibration": "c", "budget_tokens": 9}}, "full sets of samples"),
    ],
)
def test_solve(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        SolveConfig.model_validate({"asked": {"question": "x"}} | fields)


def leaves(model: type[BaseModel]) -> list[str]:
    """The names of all settings as options, with those of nested models."""
    found = []
    for name, field in model.model_fields.items():
        kind = field.annotation
        nested = isinstance(kind, type) and issubclass(kind, BaseModel)
        found += leaves(kind) if nested else [option_name(name, field)]  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("model", [SolveConfig, ServeConfig])
def test_every_setting_can_be_an_option(model: type[BaseModel]) -> None:
    """No name comes twice."""
    names = leaves(model)
    assert len(names) == len(set(names))


def test_neither_torch_nor_aiohttp_is_needed() -> None:
    code = (
        "import sys, selfverify.serving.config; "
        "print([name for name in ('torch', 'aiohttp') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
