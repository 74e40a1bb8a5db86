"""Agents that make mistakes on the phone: the expert's calls, of which none, one or two go wrong.

Judges are tried and trained on what such agents hand in: a way that stops early or leaves a call out, another
value, row or app, a change that is undone, a wrong answer, and evidence that lacks what matters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from selfverify.agents.evidence import EvidenceConfig, Exhibit, Source, Submission, shown_to_judge
from selfverify.agents.facts import same
from selfverify.agents.goals import Goal, Truth, minimal_evidence
from selfverify.agents.judges.case import Case
from selfverify.core import event_loop
from selfverify.core.episode import Call
from selfverify.core.problem import Split
from selfverify_phone.apps import APPS
from selfverify_phone.contents import words
from selfverify_phone.demonstrations import Teacher
from selfverify_phone.environment import PhoneConfig, PhoneEnvironment
from selfverify_phone.expert import carry_out
from selfverify_phone.phone_tasks import PhoneTask, Start, make_task
from selfverify_phone.system.device import HOME, Phone
from selfverify_phone.task import PhoneAgentsConfig
from selfverify_phone.templates.base import Template

Mistake = Literal["early", "left out", "value", "row", "app", "again", "answer"]
"""``early``: hands in too soon; ``left out``: a call is missing; ``value``: types something else; ``row``:
touches something else; ``app``: is lost in another app; ``again``: does the last thing twice, which mostly
undoes it; ``answer``: says something else."""

OFTEN: dict[Mistake, int] = {
    "app": 1,
    "left out": 1,
    "early": 2,
    "value": 6,
    "row": 6,
    "answer": 6,
    "again": 2,
}
"""How often each is made, of those that can be: mostly such as only who reads every word finds."""
RIGHT = 0.45
"""Share of agents that make no mistake."""
TWO = 0.25
"""Share of the others that make two."""
TEACHERS = (Teacher(), Teacher(least=1, most=3, omits=0.3), Teacher(least=3, most=5, omits=0.3))
"""How evidence is chosen."""
MOST_REFUSED = 2
"""Refused calls after which an agent gives up and hands in."""
_TOUCHES = ("tap", "long_press")
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Finished:
    """A session that is over, in which something proper was handed in.

    It can be judged as often as one likes, with any part of it shown to the judge.

    Args:
        name: The problem's id, for logs.
        instruction: The agent's task in words.
        goal: The task's goal.
        truth: The ground truth at the end.
        message: The final message.
        chosen: The exhibits that the agent has handed in.
        history: All exhibits of the session.
    """

    name: str
    instruction: str
    goal: Goal
    truth: Truth
    message: str
    chosen: Sequence[Exhibit]
    history: Sequence[Exhibit]

    def case(self, read: Source) -> Case:
        """Return the case of a judge that reads this part of it."""
        shown = shown_to_judge(self.chosen, self.history, EvidenceConfig(judged=read))
        rounds = self.history[-1].seen.round if self.history else 0
        submission = Submission(self.message, shown, self.history)
        return Case(self.name, self.instruction, submission, rounds, self.goal, self.truth)


@dataclass(slots=True)
class _Planned:
    """A call, and whether it touches something else than it says."""

    call: Call
    astray: bool = False


def drawn_task(phone: PhoneAgentsConfig, split: Split, seed: int, number: int) -> tuple[Template, int]:
    """The kind of the task of a session, and the seed of its contents; kinds take turns.

    Args:
        phone: Kinds of tasks, and splits.
        split: The split that the task belongs to.
        seed: Decides all tasks.
        number: The session's number.
    """
    kinds = phone.templates(split)
    kind = kinds[number % len(kinds)]
    return kind, phone.seed_of(kind, split, seed, number)


def erring_session(template: str, drawn: int, start: Start, hostile: bool, options: PhoneConfig) -> Finished:
    """What the one agent has done that is given this task; see `attempted`.

    Args:
        template: The kind of task.
        drawn: The seed of its contents, which decides the mistakes, too.
        start: What the phone shows at first.
        hostile: Whether its contents try to deceive.
        options: How it is shown and touched.
    """
    return attempted(make_task(template, drawn, start, hostile), options, np.random.default_rng([drawn, 1]))


def attempted(task: PhoneTask, options: PhoneConfig, rng: np.random.Generator) -> Finished:
    """What an agent has done and handed in that may have made mistakes.

    Args:
        task: What it was asked.
        options: How the phone is shown and touched.
        rng: Draws how many mistakes are made, and which; what is handed in.
    """
    count = 0 if rng.random() < RIGHT else 1 + int(rng.random() < TWO)
    phone = task.phone()
    plan = [_Planned(call) for call in carry_out(phone, task.solve, options.address)]
    proof = [_Planned(call) for call in carry_out(phone, task.prove, options.address)]
    made: list[Mistake] = []
    for _ in range(count):
        made.append(_err(task, plan, proof, rng))
    looks = [_Planned(Call("get_current_xml"))] * (options.first_screen == "asked")
    environment = PhoneEnvironment(options)
    history = _played(task, environment, [*looks, *plan, *proof], rng)
    message = task.message
    if task.goal.kind == "query" and made and ("answer" in made or rng.random() < 0.8):
        message = _other_answer(task, history, rng)
    state = event_loop.finish_inline(environment.state())
    assert state is not None
    truth = task.goal.on_state(state["facts"], message)
    shown = history if options.first_screen == "given" else history[1:]
    chosen = _chosen(task, shown, message, rng)
    return Finished(
        f"{task.template}/{task.seed}", task.instruction, task.goal, truth, message, chosen, history
    )


def _err(task: PhoneTask, plan: list[_Planned], proof: list[_Planned], rng: np.random.Generator) -> Mistake:
    """Make a mistake in a plan, in place."""
    typed = [i for i, planned in enumerate(plan) if planned.call.name == "type"]
    touched = [i for i, planned in enumerate(plan) if planned.call.name in _TOUCHES]
    possible: list[Mistake] = ["app"]
    if len(plan) > 1:
        possible += ["left out", "early"]
    if typed:
        possible.append("value")
    if touched:
        possible.append("row")
    if task.goal.kind == "query":
        possible.append("answer")
    elif touched:
        possible.append("again")
    drawn = [one for one in possible for _ in range(OFTEN[one])]
    mistake = drawn[int(rng.integers(len(drawn)))]
    if mistake == "early":
        del plan[-int(rng.integers(1, min(4, len(plan)))) :]
        proof.clear()
    elif mistake == "left out":
        del plan[int(rng.integers(len(plan)))]
    elif mistake == "value":
        place = typed[int(rng.integers(len(typed)))]
        text = other_text(str(plan[place].call.arguments["text_input"]), rng)
        plan[place] = _Planned(Call("type", {"text_input": text}))
    elif mistake == "row":
        plan[touched[int(rng.integers(len(touched)))]].astray = True
    elif mistake == "again":
        plan.append(_Planned(plan[touched[-1]].call))
    elif mistake == "app":
        apps = [name for name in APPS if name != HOME and not task.template.startswith(name)]
        wandering = [planned for planned in plan if planned.call.name in _TOUCHES][:2]
        launch = _Planned(Call("launch", {"app": apps[int(rng.integers(len(apps)))]}))
        plan[:] = [launch, *(_Planned(planned.call, astray=True) for planned in wandering)]
        proof.clear()
    return mistake


def _played(
    task: PhoneTask, environment: PhoneEnvironment, plan: Sequence[_Planned], rng: np.random.Generator
) -> list[Exhibit]:
    """The exhibits of the session in which these calls are made."""
    first = event_loop.finish_inline(environment.reset({"task": task.record()}, 0))
    history, refused = [Exhibit(None, first)], 0
    for planned in plan:
        assert environment.phone is not None
        call = _astray(environment.phone, planned.call, rng) if planned.astray else planned.call
        seen = event_loop.finish_inline(environment.step(call))
        history.append(Exhibit(call, seen))
        refused += bool(seen.error)
        if refused == MOST_REFUSED:
            break
    return history


def _astray(phone: Phone, call: Call, rng: np.random.Generator) -> Call:
    """A call that touches something else, of the same kind where there is one; else the same call."""
    placed = [(widget, box) for widget, box in phone.look().placed if widget.id and widget.enabled]
    meant = next((widget for widget, box in placed if _names(call, widget.id, box)), None)
    others = [(widget, box) for widget, box in placed if widget is not meant]
    alike = [(widget, box) for widget, box in others if meant is not None and widget.role == meant.role]
    if not others:
        return call
    pool = alike or others
    widget, box = pool[int(rng.integers(len(pool)))]
    if "id" in call.arguments:
        return Call(call.name, {"id": widget.id})
    return Call(call.name, dict(zip(("x1", "y1", "x2", "y2"), box, strict=True)))


def _names(call: Call, id: str, box: tuple[int, int, int, int]) -> bool:
    return call.arguments.get("id") == id or tuple(call.arguments.values()) == box


def other_text(text: str, rng: np.random.Generator) -> str:
    """Another text of the same kind: another time, number, name or word; never the same.

    Args:
        text: What should have been typed or said.
        rng: Draws it.
    """
    if re.fullmatch(r"\d\d:\d\d", text):
        hours, minutes = int(text[:2]), int(text[3:])
        if rng.random() < 0.5:
            hours = (hours + int(rng.integers(1, 24))) % 24
        else:
            minutes = (minutes + 5 * int(rng.integers(1, 12))) % 60
        return f"{hours:02d}:{minutes:02d}"
    if numbers := [*_DIGITS.finditer(text)]:
        found = numbers[int(rng.integers(len(numbers)))]
        wide = 10 ** len(found[0])
        other = (int(found[0]) + int(rng.integers(1, wide))) % wide
        return f"{text[: found.start()]}{other:0{len(found[0])}d}{text[found.end() :]}"
    lists = [listed for listed in vars(words).values() if isinstance(listed, tuple)]
    for part in [text, *text.split()]:
        for listed in lists:
            if any(same(part, word) for word in listed):
                others = [word for word in listed if not same(part, word)]
                return text.replace(part, others[int(rng.integers(len(others)))], 1)
    titles = [title for title in words.TITLES if not same(title, text)]
    return titles[int(rng.integers(len(titles)))]


def _other_answer(task: PhoneTask, history: Sequence[Exhibit], rng: np.random.Generator) -> str:
    """A wrong answer: where there is one, another value of what was asked for that has been seen."""
    answer = task.goal.answer
    assert answer is not None
    if answer.form == "yes-no":
        return "no" if answer.value == "yes" else "yes"
    seen = [fact for exhibit in history for fact in exhibit.seen.info.get("facts", ())]
    asked = {attribute for _, attribute, value in seen if same(str(value), answer.value)}
    found = {str(value) for _, attribute, value in seen if attribute in asked} | {*answer.others}
    wrong = sorted(value for value in found if not answer.matches(value))
    if wrong:
        return wrong[int(rng.integers(len(wrong)))]
    while answer.matches(other := other_text(answer.value, rng)):
        continue
    return other


def _chosen(
    task: PhoneTask, shown: Sequence[Exhibit], message: str, rng: np.random.Generator
) -> list[Exhibit]:
    """What is handed in: of a proof what the teacher leaves; without one the latest that bear on the task.

    Those whose work is proven do the latter now and then, too. What was proven and undone is handed in as if
    it were so.
    """
    rounds = [exhibit.seen.round for exhibit in shown if not exhibit.seen.error] or [shown[-1].seen.round]
    proof = None
    if rng.random() < 0.8:
        for end in range(len(shown), max(len(shown) - 4, 0), -1):
            proof = proof or minimal_evidence(shown[:end], task.goal, message)
    if proof is None:
        bearing = [e.seen.round for e in shown if not e.seen.error and task.goal.relevant(e)]
        proof = tuple(bearing[-int(rng.integers(1, 3)) :] or rounds[-1:])
    teacher = TEACHERS[int(rng.integers(len(TEACHERS)))]
    named = {*teacher.chosen(proof, rounds, rng)}
    return [exhibit for exhibit in shown if exhibit.seen.round in named]
