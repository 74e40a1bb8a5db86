"""What installed distributions bring along: tasks, recipes and weights with environments of their own.

A distribution has an entry point in the group `GROUP`, whose value is a module with ``TASKS``, the classes of
its tasks, ``RECIPES``, the folder of its recipes, ``WEIGHTS``, whose subfolders are policies
(``builtin:NAME``), and ``SOURCES``, kinds of sources of environments with their classes (`SourceConfig`).
Each may be missing.
"""

from __future__ import annotations

import logging
from functools import cache
from importlib.metadata import entry_points
from types import ModuleType

logger = logging.getLogger(__name__)

GROUP = "selfverify.environments"
_OURS = {"phone": "phone", "browser": "miniwob"}
"""Our own distributions, in ``environments/``, by a word that is in the names of all that they bring."""


@cache
def distributions() -> dict[str, ModuleType]:
    """Return the modules of installed distributions by the names of their entry points.

    One that cannot be imported is left out, and a warning names it: the others can be used all the same.
    """
    found: dict[str, ModuleType] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            found[entry.name] = entry.load()
        except Exception as error:
            logger.warning(
                "the distribution %s (%s) cannot be used: %s: %s; install it anew, or remove it",
                entry.name, entry.value, type(error).__name__, error,
            )  # fmt: skip
    return found


def how_to_get(name: str) -> str:
    """Return in a sentence how to install what brings a task, recipe or policy; empty if nobody knows.

    Where the distribution is installed, it has nothing of this name, and nothing is said.
    """
    for word, owner in _OURS.items():
        if word in name.split("-") and owner not in distributions():
            return (
                f"{name!r} comes with a distribution of its own, which is not installed: pip install "
                f"./environments/{owner} in a checkout"
            )
    return ""
