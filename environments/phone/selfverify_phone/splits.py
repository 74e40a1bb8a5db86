"""Which tasks belong to training, validation and test: by seed, by kind of task, and by app."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from selfverify.core.problem import Split
from selfverify_phone.templates import TEMPLATES
from selfverify_phone.templates.base import Template

Unseen = Literal["seeds", "templates", "apps"]
"""What the test split has that training has not: other contents of the same kinds of tasks, kinds of tasks,
or whole apps."""
HELD_OUT_APPS = ("music", "reader")
"""Apps that a test of unseen apps is about, unless it names others."""


def templates_of(
    split: Split,
    unseen: Unseen,
    apps: Collection[str] | None = None,
    test_apps: Collection[str] = HELD_OUT_APPS,
) -> list[Template]:
    """The kinds of tasks of a split. Validation has those of training; its contents are others.

    Args:
        split: The split.
        unseen: What the test split has that training has not. Kinds of tasks are those that are marked as
            held out (`Template.held_out`).
        apps: The apps that tasks are about; None for all.
        test_apps: With ``apps``: the apps of the test split, which no other split has.
    """
    wanted = {template.app for template in TEMPLATES.values()} if apps is None else {*apps}
    if unseen == "apps":
        wanted = {*test_apps} if split == "test" else wanted - {*test_apps}
    found = [template for template in TEMPLATES.values() if template.app in wanted]
    if unseen == "templates":
        found = [template for template in found if template.held_out == (split == "test")]
    return found
