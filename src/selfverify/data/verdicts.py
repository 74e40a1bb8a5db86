"""Verdicts on training problems: which of them are worth training on.

`selfverify data filter` writes them to a journal (`selfverify.core.jsonl_store`), one `Decision` per problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from selfverify.core.errors import ConfigError
from selfverify.core.jsonl_store import STRICT, read_journal

ALL_RIGHT, ALL_WRONG, UNJUDGED = "all right", "all wrong", "unjudged"
BROKEN, NOT_COUNTED = "broken", "not counted"
"""Why a problem is dropped."""
_UNIFORM = {"1": ALL_RIGHT, "1->1": ALL_RIGHT, "0": ALL_WRONG, "0->0": ALL_WRONG}


@dataclass(frozen=True, slots=True)
class FilterVerdict:
    """What a policy's samples say about one training problem.

    Args:
        index: The problem's index among the task's training problems, under the seed in the header.
        problem: The problem's id.
        digest: A digest of the question and the target, by which changed data is noticed.
        samples: The number of samples of each kind: ``1`` right and ``0`` wrong, or with two turns ``0->0``
            to ``1->1``. Samples that could not be judged are not counted.
        dropped: Why the problem is not worth training on; empty if it is.
        reason: What is wrong with a broken problem, or why the task's scoring does not count it.
    """

    __pydantic_config__: ClassVar = STRICT

    index: int
    problem: str
    digest: str
    samples: dict[str, int]
    dropped: str
    reason: str = ""

    @property
    def right(self) -> int:
        """The number of samples whose last answer is right."""
        return sum(count for kind, count in self.samples.items() if kind.endswith("1"))


def why_dropped(kinds: Sequence[str]) -> str:
    """Return why samples of these kinds teach nothing (they are all right or all wrong); empty if they teach.

    With two turns, samples teach nothing if all are 1->1 or all are 0->0 (AdaPO, appendix A.2). A problem
    whose answers the second turn spoils or corrects stays, even if it does so with all of them.
    """
    found = set(kinds)
    if not found:
        return UNJUDGED
    return _UNIFORM.get(found.pop(), "") if len(found) == 1 else ""


def read_verdicts(path: str | Path) -> tuple[dict[str, Any], list[FilterVerdict]]:
    """Read a finished file of verdicts.

    Returns:
        The settings, and the verdicts in the order of their index.

    Raises:
        ConfigError: There is no such file, or it is unfinished.
        DataError: The file holds something else, or a line is corrupt.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise ConfigError(f"{path}: there are no verdicts; `selfverify data filter` writes them")
    settings, verdicts = read_journal(path, FilterVerdict)
    if len(verdicts) < settings["problems"]:
        raise ConfigError(
            f"{path} has {len(verdicts)} of {settings['problems']} verdicts: call `selfverify data filter` "
            "as before, which goes on"
        )
    return settings, [verdicts[index] for index in sorted(verdicts)]
