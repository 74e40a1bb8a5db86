"""Sessions on the phone that judges are tried on: of agents that make mistakes, and of stored evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from selfverify.agents.episode import Finished, Outcome
from selfverify.agents.evidence import Exhibit
from selfverify.agents.goals import Goal
from selfverify.core import event_loop
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.jsonl_store import read_journal
from selfverify.core.problem import Problem, Split
from selfverify.evaluation.samples import StoredProblem, StoredSample, find_store
from selfverify.reports.film import calls_of, end_of, turns_of
from selfverify_phone.environment import PhoneConfig, PhoneEnvironment
from selfverify_phone.mistakes import drawn_task, erring_session
from selfverify_phone.task import PhoneAgents, PhoneAgentsConfig


@dataclass(frozen=True, slots=True)
class Sessions:
    """Sessions in which something proper was handed in.

    Args:
        sessions: In order; those of one problem have one name.
        about: Where they come from, as plain JSON.
        others: How many ended in another way, so that no judge is asked.
    """

    sessions: list[Finished]
    about: dict[str, Any]
    others: int = 0


def erring_sessions(phone: PhoneAgentsConfig, split: Split, seed: int, count: int) -> Sessions:
    """Sessions of experts that make mistakes, or none; kinds of tasks take turns.

    Args:
        phone: Kinds of tasks, splits and screens.
        split: The split that the tasks belong to.
        seed: Decides the tasks and the mistakes.
        count: How many.
    """
    made = []
    for number in range(count):
        kind, drawn = drawn_task(phone, split, seed, number)
        made.append(erring_session(kind.name, drawn, phone.start, phone.hostile, phone.options))
    about = {
        "agents": "experts that make mistakes",
        "split": split,
        "seed": seed,
        "phone": phone.model_dump(mode="json", exclude_defaults=True),
    }
    return Sessions(made, about)


def stored_sessions(source: Path) -> Sessions:
    """The sessions of a stored evaluation of the task `phone`; each is played again.

    Screens are written in few words (`text: terse`), whatever the agent was shown.

    Args:
        source: A `samples.jsonl`, or the folder of an evaluation or a run.

    Raises:
        ConfigError: There are no samples, they are of another task, or the task asks something else now.
        DataError: The store is damaged, or the phone does something else now than it did.
    """
    store = find_store(source)
    settings, rows = read_journal(store, StoredProblem)
    task = _phone_task(store, settings)
    sessions, others = [], 0
    for row in rows.values():
        problem = task.problem(settings.get("split", "test"), 0, row.index)
        if problem.digest() != row.digest:
            raise ConfigError(f"{store}: problem {problem.id} asks or wants something else now")
        for sample in row.samples:
            again = _again(store, task, problem, sample)
            others += again is None
            sessions += [again] if again is not None else []
    about = {name: settings.get(name) for name in ("model", "weights", "split", "temperature", "samples")}
    return Sessions(sessions, {"agents": str(source), **about, "task": settings.get("task_options")}, others)


def _phone_task(store: Path, settings: Mapping[str, Any]) -> PhoneAgents:
    if settings.get("task") != PhoneAgents.name:
        raise ConfigError(f"{store} is of task {settings.get('task')!r}; judges are tried on task phone only")
    options = {**(settings.get("task_options") or {}), "judge": {}}
    try:
        return PhoneAgents(PhoneAgentsConfig.model_validate(options))
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(map(str, fault["loc"]))
        raise ConfigError(f"{store}: its task's option {place}: {fault['msg']}") from None


def _again(store: Path, task: PhoneAgents, problem: Problem, sample: StoredSample) -> Finished | None:
    """The session, played again; None where nothing proper was handed in."""
    end = end_of(sample)
    if end is None or end.outcome != Outcome.SUBMITTED or problem.target["goal"] is None:
        return None
    options = PhoneConfig(text="terse", first_screen=task.config.agent.first_screen)
    phone = PhoneEnvironment(options)
    first = event_loop.finish_inline(phone.reset(problem.target["reset"], problem.target["seed"]))
    history = [Exhibit(None, first)]
    for call in calls_of(turns_of(sample)):
        history.append(Exhibit(call, event_loop.finish_inline(phone.step(call))))
    goal = Goal.read(problem.target["goal"], problem.id)
    state = event_loop.finish_inline(phone.state())
    assert state is not None
    truth = goal.on_state(state["facts"], end.message)
    chosen = [exhibit for exhibit in history if exhibit.seen.round in end.evidence]
    known = end.truth is None or end.truth.complete == truth.complete
    if len(chosen) != len(end.evidence) or not known:
        raise DataError(
            f"{store}: problem {problem.id}, sample {sample.sample}: the phone does something else now than "
            "when this was stored; evaluate the model again"
        )
    question = str(problem.meta["question"])
    return Finished(problem.id, question, goal, truth, end.message, chosen, history)
