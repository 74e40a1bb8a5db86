"""What goes wrong on the phone: the first call that differs from the expert's, and a run's groups."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from reproduce.smartsnap_failures import chances, failures, first_slip
from selfverify.core.episode import Call
from selfverify.core.errors import ConfigError
from selfverify.experiments.recipe import load_recipe
from selfverify.experiments.run import train
from selfverify_phone.expert import carry_out
from selfverify_phone.phone_tasks import make_task

TASK = make_task("clock-add-label", 5, "home")
WAY = carry_out(TASK.phone(), TASK.solve, "ids")
SUBMIT = Call("submit", {"message": "Done.", "evidences": [1]})


def changed(place: int, call: Call | None) -> list[Call | None]:
    return [*WAY[:place], call, *WAY[place + 1 :], SUBMIT]


def test_the_first_call_that_differs_is_the_slip() -> None:
    tap = next(place for place, call in enumerate(WAY) if call.name == "tap")
    word = next(place for place, call in enumerate(WAY) if call.name == "type")
    assert tap < word
    other = replace(WAY[tap], arguments={"id": "nowhere"})
    assert first_slip(TASK, WAY, changed(tap, other)) == "tap with another id"
    # What comes later does not count.
    assert first_slip(TASK, WAY, [*changed(tap, other)[: tap + 1], SUBMIT]) == "tap with another id"
    typed = replace(WAY[word], arguments={**WAY[word].arguments, "text_input": "something else"})
    assert first_slip(TASK, WAY, changed(word, typed)) == "type with another text_input"
    assert first_slip(TASK, WAY, changed(word, Call("back"))) == "another kind of call"
    assert first_slip(TASK, WAY, changed(word, None)) == "no call"
    assert first_slip(TASK, WAY, [*WAY[:word], SUBMIT]) == "hands in early"
    assert first_slip(TASK, WAY, WAY[:word]) == "no call"
    assert first_slip(TASK, WAY, [*WAY, Call("back"), SUBMIT]) == "after the expert's way"


def test_leading_spaces_are_no_slip() -> None:
    """The small policy's tokens are words with the space before them."""
    spaced = [Call(c.name, {k: f" {v}" for k, v in c.arguments.items()}) for c in WAY]
    assert first_slip(TASK, WAY, [*spaced, SUBMIT]) == "after the expert's way"


def test_an_answer_is_all_that_a_query_gets_wrong_on_the_right_way() -> None:
    query = make_task("settings-ask-level", 5, "home")
    way = carry_out(query.phone(), query.solve, "ids")
    assert query.goal.kind == "query" and first_slip(query, way, [*way, SUBMIT]) == "another answer"


def test_a_run_is_read_from_its_rollouts(tmp_path: Path) -> None:
    few = [
        "learner.steps=4",
        "learner.groups_per_step=2",
        "sampling.group_size=3",
        "learner.batch.micro_batch_groups=2",
    ]
    rest = [
        "evaluation.problems=1",
        "evaluation.samples=1",
        f"output={tmp_path}",
        "learner.checkpoint.rollout_log=all",
    ]
    recipe = load_recipe("smartsnap-phone", [*few, *rest])
    train(recipe)
    found = failures(tmp_path)
    assert [*found] == ["first", "last"]
    for part in found.values():
        assert part["groups"] == 2 and 0 <= part["mixed"] <= part["one of the group is done"] <= 1
        failed = sum(count for slips in part["slips"].values() for count in slips.values())
        assert failed == round(6 * (1 - part["done"]))
    (tmp_path / "recipe.yaml").write_text(
        (tmp_path / "recipe.yaml").read_text().replace("\nseed: 0", "\nseed: 1")
    )
    with pytest.raises(ConfigError, match="phone/train/0/0 is not what this version makes of it"):
        failures(tmp_path)


def test_a_run_without_rollouts_says_what_keeps_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rollout_log=all"):
        failures(tmp_path)


def test_the_chance_of_each_of_the_experts_calls() -> None:
    """A policy that does four of ten tasks knows most calls, and how to open an app best of all."""
    found = chances({"phone": "builtin:phone"}, shown=6)["phone"]
    assert found["launch"]["calls"] == 6 and found["launch"]["chance"] > 0.9
    assert found["all"]["calls"] == sum(of["calls"] for tool, of in found.items() if tool != "all")
    assert "submit" not in found
    for of in found.values():
        assert 0 < of["chance"] <= 1 and of["log"] <= 0
        assert of["chance"] >= math.exp(of["log"])  # Jensen's inequality
