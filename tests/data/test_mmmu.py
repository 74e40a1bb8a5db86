"""MMMU's disciplines."""

from __future__ import annotations

import pytest

from selfverify.data.questions import discipline
from selfverify.tasks.math import Math


@pytest.mark.parametrize(
    ("id", "found"),
    [
        ("validation_Art_Theory_7", "Art & Design"),
        ("dev_Public_Health_3", "Health & Medicine"),
        ("validation_Alchemy_1", None),
        ("Math_12", None),
    ],
)
def test_an_id_names_its_discipline(id: str | None, found: str | None) -> None:
    assert discipline(id) == found


def test_problems_are_grouped_by_it() -> None:
    row = {"id": "validation_Physics_2", "question": "?", "answer": "4"}
    assert Math(rows={"test": [row]}).problem("test", 0, 0).meta["categories"] == {"discipline": ["Science"]}
