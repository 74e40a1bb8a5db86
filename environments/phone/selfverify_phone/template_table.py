"""The templates as a table of Markdown, for docs/reference/phone-templates.md.

python -m selfverify_phone.template_table
"""

from __future__ import annotations

from collections.abc import Callable

from selfverify_phone.apps import APPS
from selfverify_phone.phone_tasks import make_task
from selfverify_phone.templates import TEMPLATES
from selfverify_phone.templates.base import Template

SEEDS = range(5)
SORTS: dict[str, Callable[[Template], bool]] = {
    "templates": lambda template: True,
    "operations": lambda template: template.kind == "operation",
    "queries": lambda template: template.kind == "query",
    "hidden": lambda template: template.hidden,
    "two exhibits": lambda template: template.exhibits == 2,
    "held out": lambda template: template.held_out,
}


def table() -> str:
    """One table for each app, in the order of the home screen, and one of all."""
    parts = [_numbers()]
    for app in dict.fromkeys(template.app for template in TEMPLATES.values()):
        rows = [_row(template) for template in TEMPLATES.values() if template.app == app]
        head = "| template | for example | calls | exhibits | |\n|---|---|---|---|---|"
        parts.append("\n".join([f"### {APPS[app].title}\n", head, *rows]))
    return "\n\n".join(parts) + "\n"


def _row(template: Template) -> str:
    tasks = [make_task(template.name, seed) for seed in SEEDS]
    calls = _range([task.length for task in tasks])
    more = _range([task.proving for task in tasks])
    marks = ["query"] if template.kind == "query" else []
    marks += ["hidden"] if template.hidden else []
    marks += ["held out"] if template.held_out else []
    said = tasks[0].instruction
    return (
        f"| `{template.name}` | {said} | {calls}{'' if more == '0' else f' + {more}'} | {template.exhibits} "
        f"| {', '.join(marks)} |"
    )


def _range(numbers: list[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low}–{high}"


def _numbers() -> str:
    """How many templates of each sort every app has."""
    lines = [f"| app | {' | '.join(SORTS)} |", "|---|" + "---|" * len(SORTS)]
    apps = list(dict.fromkeys(template.app for template in TEMPLATES.values()))
    for name, group in [(APPS[app].title, {app}) for app in apps] + [("all", set(apps))]:
        found = [template for template in TEMPLATES.values() if template.app in group]
        counts = [str(sum(map(of_sort, found))) for of_sort in SORTS.values()]
        lines.append(f"| {name} | {' | '.join(counts)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(), end="")
