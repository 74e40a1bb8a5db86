"""Where judged sessions come from: agents that make mistakes, and evaluations that are played again."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from tests.agents.phone.played import call, expert, phone_task, played

from reproduce.judged_sessions import erring_sessions, stored_sessions
from selfverify.agents.judges.jury import RulesJudge
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.jsonl_store import open_journal
from selfverify.core.problem import Problem
from selfverify.evaluation.samples import StoredProblem, StoredSample
from selfverify_phone.task import PhoneAgents, PhoneAgentsConfig

PHONE = PhoneAgentsConfig.model_validate({"text": "terse", "agent": {"first_screen": "given"}})


def test_sessions_of_agents_that_err_depend_on_the_seed_alone() -> None:
    one, again = (erring_sessions(PHONE, "validation", 3, 20) for _ in range(2))
    assert one == again and len(one.sessions) == 20 and one.others == 0
    assert one.sessions[:10] == erring_sessions(PHONE, "validation", 3, 10).sessions
    names = {session.name for session in one.sessions}
    for split, seed in (("validation", 4), ("train", 3), ("test", 3)):
        other = erring_sessions(PHONE, split, seed, 20)  # type: ignore[arg-type]
        assert names.isdisjoint(session.name for session in other.sessions)
    assert one.about["seed"] == 3 and one.about["phone"]["text"] == "terse"


def stored(
    folder: Path,
    task: PhoneAgents,
    problems: list[Problem],
    samples: list[list[StoredSample]],
    /,
    **header: Any,
) -> Path:
    """A store as `evaluate` writes it."""
    settings = {"task": task.name, "task_options": task.config.model_dump(mode="json"), "split": "test"}
    journal, _ = open_journal(folder / "samples.jsonl", StoredProblem, {**settings, **header})
    rows = [
        StoredProblem(index, problem.digest(), own)
        for index, (problem, own) in enumerate(zip(problems, samples, strict=True))
    ]
    journal.append(*(asdict(row) for row in rows))
    return folder


@pytest.fixture
def sampled(tmp_path: Path) -> tuple[PhoneAgents, list[Problem], list[list[StoredSample]]]:
    """An expert's sessions with XML screens, and one that hands in nothing."""
    task = phone_task(judge={"kind": "state"})
    problems = [task.problem("test", 0, index) for index in range(3)]
    right = [played(task, problem, expert(task, problem), tmp_path) for problem in problems]
    idle = played(task, problems[0], [call("home"), "I am done."], tmp_path)
    return task, problems, [[right[0], replace(idle, sample=1)], [right[1]], [right[2]]]


def test_stored_sessions_are_played_again(
    tmp_path: Path, sampled: tuple[PhoneAgents, list[Problem], list[list[StoredSample]]]
) -> None:
    task, problems, samples = sampled
    held = stored_sessions(stored(tmp_path, task, problems, samples, model="expert"))
    assert held.others == 1 and held.about["model"] == "expert"
    assert [session.name for session in held.sessions] == [problem.id for problem in problems]
    for session, problem in zip(held.sessions, problems, strict=True):
        assert session.truth.complete and session.instruction == problem.meta["question"]
        assert session.history[0].seen.text.startswith("- Home") and "<" not in session.history[0].seen.text
        [ballot] = RulesJudge().ask(session.case("chosen"), [0])()
        assert ballot.vote is not None and ballot.vote.success
    assert stored_sessions(tmp_path / "samples.jsonl") == replace(
        held, about=held.about | {"agents": str(tmp_path / "samples.jsonl")}
    )


def test_what_cannot_be_played_again_is_refused(
    tmp_path: Path, sampled: tuple[PhoneAgents, list[Problem], list[list[StoredSample]]]
) -> None:
    task, problems, samples = sampled
    with pytest.raises(ConfigError, match="there is no folder and no file"):
        stored_sessions(tmp_path / "nowhere")
    for name, header, message in (
        ("digits", {"task": "digits-pick"}, "of task 'digits-pick'; judges are tried on task phone only"),
        ("options", {"task_options": {"speed": 3}}, "its task's option speed: "),
        ("split", {"split": "validation"}, "asks or wants something else now"),
    ):
        (tmp_path / name).mkdir()
        folder = stored(tmp_path / name, task, problems, samples, **header)
        with pytest.raises(ConfigError, match=message):
            stored_sessions(folder)


def test_a_phone_that_does_something_else_now_is_an_error(
    tmp_path: Path, sampled: tuple[PhoneAgents, list[Problem], list[list[StoredSample]]]
) -> None:
    task, problems, samples = sampled
    record = samples[1][0].steps[-1].record
    assert record is not None
    record["evidence"] = [99]
    folder = stored(tmp_path, task, problems, samples)
    with pytest.raises(DataError, match=f"problem {problems[1].id}, sample 0: the phone does something else"):
        stored_sessions(folder)
    record["evidence"], record["truth"] = [1], {"complete": False, "subgoals": [False]}
    (tmp_path / "samples.jsonl").unlink()
    with pytest.raises(DataError, match="evaluate the model again"):
        stored_sessions(stored(tmp_path, task, problems, samples))
