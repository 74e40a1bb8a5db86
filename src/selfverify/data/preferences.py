"""Preferences between two ways to go on, and verdicts on which problems are worth training on.

`selfverify data filter` writes the verdicts to a journal (`selfverify.core.jsonl_store`), one `FilterVerdict`
per problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.jsonl_store import StrictRow, read_journal
from selfverify.data import conversations as talks
from selfverify.data.fields import Images, Place, Record, Row, filled, first, optional, shown
from selfverify.data.questions import find_images

SIDES = ("chosen", "rejected")


def is_preference(record: Record) -> bool:
    """Whether a record is a preference among conversations."""
    return all(isinstance(record.get(side), list | dict) and filled(record[side]) for side in SIDES)


def convert_preference(record: Record, place: Place, images: Images) -> Sequence[Row | DataError]:
    """Convert a preference: one beginning and two ways to go on, of which one is better.

    ``prompt``, ``chosen`` and ``rejected`` are lists of messages, as TRL's conversational preference data
    have them; without a ``prompt`` it is what both sides begin with (TRL's implicit prompts). LLaMA-Factory's
    form is read, too: ``messages`` or ``conversations`` and one message for each side. ``images`` are those
    of the prompt, ``chosen_images`` and ``rejected_images`` those behind it, where parts do not name their
    images.

    A row has ``prompt``, ``chosen`` and ``rejected`` (messages as `read_messages` makes them), ``kind``, and
    ``chosen_cuts`` and ``rejected_cuts`` where the file says how turns divide into channels.
    """
    given = _divided(record)
    column = find_images(record, images, place)
    marks = bool(column) or any(filled(record.get(f"{side}_images")) for side in SIDES)
    shows = talks.Shows(images, place, column, marks)
    row: Row = {
        **talks.shared_fields(record, ("id", "pair"), ("data_source",), ("category",)),
        "kind": optional(record, "kind"),
        "prompt": talks.read_messages(given["prompt"], "prompt", shows),
    }
    if row["prompt"][-1]["role"] == "assistant":
        raise DataError("its prompt has to end before the assistant speaks")
    for side in SIDES:
        own = shows
        if filled(record.get(f"{side}_images")):
            own = talks.Shows(images, place, images.refs(record[f"{side}_images"], place), True)
        row[side] = talks.read_messages(given[side], side, own)
        if own is not shows:
            own.check_all_shown()
        if any(row[side][end]["role"] != "assistant" for end in (0, -1)):
            raise DataError(f"its {side} messages do not begin and end with the assistant's")
        talks.check_order([*row["prompt"], *row[side]])
        if filled(record.get(f"{side}_cuts")):
            row[f"{side}_cuts"] = talks.read_cuts(record[f"{side}_cuts"], row[side], f"{side}_cuts")
    shows.check_all_shown()
    return [row]


def _divided(record: Record) -> dict[str, list[Any]]:
    """A record's prompt and sides as lists of messages."""
    sides = {side: [record[side]] if isinstance(record[side], dict) else list(record[side]) for side in SIDES}
    prompt = first(record, "prompt", "messages", "conversations")
    if prompt is None:
        both = zip(*sides.values(), strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both))
        prompt = sides["chosen"][:same]
        sides = {side: messages[same:] for side, messages in sides.items()}
    if not isinstance(prompt, list) or not prompt:
        raise DataError(f"its prompt is {shown(prompt)}, not a list of messages")
    if not all(sides.values()):
        raise DataError("nothing is left of one of its sides behind what both begin with")
    return {
        name: list(map(talks.with_role, messages)) for name, messages in {"prompt": prompt, **sides}.items()
    }


ALL_RIGHT, ALL_WRONG, UNJUDGED = "all right", "all wrong", "unjudged"
BROKEN, NOT_COUNTED = "broken", "not counted"
"""Why a problem is dropped."""
_UNIFORM = {"1": ALL_RIGHT, "1->1": ALL_RIGHT, "0": ALL_WRONG, "0->0": ALL_WRONG}


@dataclass(frozen=True, slots=True)
class FilterVerdict(StrictRow):
    """The verdict of a policy's samples on one training problem.

    Args:
        index: The problem's index among the task's training problems, under the seed in the header.
        problem: The problem's id.
        digest: A digest of the question and the target, by which changed data is noticed.
        samples: The number of samples of each kind: ``1`` right and ``0`` wrong, or with two turns ``0->0``
            to ``1->1``. Samples that could not be judged are not counted.
        dropped: Why the problem is not worth training on; empty if it is.
        reason: The fault of a broken problem, or why the task's scoring does not count it.
    """

    STORED_AS: ClassVar[str] = "Verdict"

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
    return settings, list(verdicts.values())
