"""Every template: what it draws can be done, is not done before, and is proven as it says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from selfverify.agents.evidence import Exhibit
from selfverify.agents.goals import minimal_evidence
from selfverify_phone.expert import carry_out
from selfverify_phone.phone_tasks import PhoneTask, _made, make_task
from selfverify_phone.playing import perform
from selfverify_phone.template_table import table
from selfverify_phone.templates import TEMPLATES

from .shortest import reached, seen

SEEDS = range(20)


def played(task: PhoneTask) -> tuple[list[Exhibit], bool]:
    """The expert's exhibits, and whether there was evidence as soon as the goal was reached."""
    phone, plan = task.phone(), task.phone()
    history, natural = [seen(phone)], True
    calls = carry_out(plan, [*task.solve])
    for calls_of, steps in ((calls, True), (carry_out(plan, task.prove), False)):
        for call in calls_of:
            perform(phone, call)
            history.append(seen(phone, len(history)))
        if steps:
            assert task.goal.on_state(phone.facts(), task.message).complete, "the goal is not reached"
            natural = minimal_evidence(history, task.goal, task.message) is not None
    assert task.goal.on_state(phone.facts(), task.message).complete, "proving has undone it"
    return history, natural


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_expert_solves_and_proves_it(name: str) -> None:
    for seed in SEEDS[:8]:
        for hostile in (False, True)[: 1 + (seed < 4)]:
            task = make_task(name, seed, hostile=hostile)
            where = f"seed {seed}: {task.instruction}"
            assert not task.goal.on_state(task.phone().facts()).complete, where
            history, natural = played(task)
            assert len(history) - 1 == task.length + task.proving, where
            assert natural is not task.hidden, where
            evidence = minimal_evidence(history, task.goal, task.message)
            assert evidence is not None and len(evidence) == task.exhibits, where


@pytest.mark.parametrize("name", TEMPLATES)
def test_tasks_vary_and_can_be_repeated(name: str) -> None:
    tasks = [make_task(name, seed) for seed in SEEDS]
    assert len({task.instruction for task in tasks}) > 2
    assert all("{" not in task.instruction for task in tasks)
    assert tasks[3] == _made.__wrapped__(name, 3, "home", False)


@pytest.mark.parametrize("name", TEMPLATES)
def test_it_can_begin_in_its_app(name: str) -> None:
    task = make_task(name, 1, start="app")
    assert task.phone().stack[1]["app"] == TEMPLATES[name].app
    played(task)


QUICK = [name for name in TEMPLATES if make_task(name, 0).length <= 5 and TEMPLATES[name].kind == "operation"]


def too_long(task: PhoneTask, states: int) -> bool:
    found = reached(task, task.length - 1, states)
    return found is not None and found > 0


@pytest.mark.parametrize("name", QUICK[::3])
def test_no_way_is_shorter(name: str) -> None:
    assert not too_long(make_task(name, 0), 1500)


GUESSED = {"calendar-ask-day"}
"""A search that knows the answer goes straight to it; an agent has to look for it."""
SEARCHED = {n for n, t in TEMPLATES.items() if t.kind == "operation" or t.exhibits == 1} - GUESSED


def test_there_are_enough_of_each_sort() -> None:
    templates = list(TEMPLATES.values())
    quarter = len(templates) / 4
    assert len(templates) >= 120
    assert sum(template.hidden for template in templates) >= quarter
    assert sum(template.exhibits == 2 for template in templates) >= quarter
    assert sum(template.kind == "query" for template in templates) >= quarter
    assert all(len(set(template.wordings)) >= 3 for template in templates)


@pytest.mark.parametrize("name", list(TEMPLATES)[::5])
def test_bounds_lead_where_ids_lead(name: str) -> None:
    task = make_task(name, 5)
    phone, plan = task.phone(), task.phone()
    for call in carry_out(plan, [*task.solve, *task.prove], "bounds"):
        assert "id" not in call.arguments
        perform(phone, call)
    assert phone.state == plan.state
    assert task.goal.on_state(phone.facts(), task.message).complete


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SEARCHED))
def test_no_way_is_shorter_at_all(name: str) -> None:
    for seed in range(2):
        assert not too_long(make_task(name, seed), 20_000)


# --- the page and its table ---------------------------------------------------------------------------------


DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "phone.md"


def test_all_templates_are_listed() -> None:
    written = (DOCS / "reference" / "phone-templates.md").read_text(encoding="utf-8")
    listed = written.split("explains the columns.*\n\n")[1]
    assert listed == table(), "run python -m selfverify_phone.template_table"


def test_the_page_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    program = tmp_path / "page.py"
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    program.write_text(block, encoding="utf-8")
    runpy.run_path(str(program))
    assert f"```\n{capsys.readouterr().out}```" in page
