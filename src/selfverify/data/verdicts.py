"""Verdicts on training problems: which are worth training on, as `selfverify data filter` writes them.

The first line is a header, ``{"format": 1, "problems": n, "settings": {...}}``; each further line is one
`Verdict`. A file that was cut off while it was written is gone on with.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from selfverify.errors import ConfigError, DataError

log = logging.getLogger(__name__)

FORMAT = 1
ALL_RIGHT, ALL_WRONG, UNJUDGED = "all right", "all wrong", "unjudged"
BROKEN, NOT_COUNTED = "broken", "not counted"
"""Why a problem is dropped."""
_UNIFORM = {"1": ALL_RIGHT, "1->1": ALL_RIGHT, "0": ALL_WRONG, "0->0": ALL_WRONG}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a policy's samples say about one training problem.

    Args:
        index: Its index among the task's training problems, under the seed in the header.
        problem: Its id.
        digest: Of its question and target, by which changed data is noticed.
        samples: How many samples there are of each kind: ``1`` right and ``0`` wrong, or with two turns
            ``0->0`` to ``1->1``. Without those that could not be judged.
        dropped: Why it is not worth training on; empty if it is.
        reason: Why, of one that is broken or that the task's scoring does not count.
    """

    index: int
    problem: str
    digest: str
    samples: dict[str, int]
    dropped: str
    reason: str = ""

    @property
    def right(self) -> int:
        """Samples that are right in the end."""
        return sum(count for kind, count in self.samples.items() if kind.endswith("1"))


_FIELDS = {field.name for field in fields(Verdict)}


def why_dropped(kinds: Sequence[str]) -> str:
    """Why samples of these kinds teach nothing: all right or all wrong; empty if they do teach.

    With two turns that is all 1->1 or all 0->0 (AdaPO, appendix A.2): a problem all of whose answers the
    second turn spoils, or corrects, stays.
    """
    found = set(kinds)
    if not found:
        return UNJUDGED
    return _UNIFORM.get(found.pop(), "") if len(found) == 1 else ""


class VerdictFile:
    """An append-only file of verdicts.

    Args:
        path: The file; its folder is created.
        problems: How many problems it will have.
        settings: Whatever decides the verdicts, as JSON values.

    Raises:
        ConfigError: The file was written under other settings.
        DataError: It is no such file, or a line is corrupt.
    """

    def __init__(self, path: Path, problems: int, settings: Mapping[str, Any]) -> None:
        header = json.dumps({"format": FORMAT, "problems": problems, "settings": dict(settings)})
        path.parent.mkdir(parents=True, exist_ok=True)
        self.verdicts: dict[int, Verdict] = {}
        # With a header that was cut off nothing is lost.
        if path.exists() and not f"{header}\n".encode().startswith(path.read_bytes()):
            found, verdicts, end = _parse(path)
            if found != json.loads(header):
                raise ConfigError(
                    f"{path} was written under other settings: {_difference(found, json.loads(header))}; set "
                    "them back to go on with it, or write to another file"
                )
            self.verdicts = {verdict.index: verdict for verdict in verdicts}
            os.truncate(path, end)
            self._file = path.open("ab")
        else:
            self._file = path.open("wb")
            self._file.write(header.encode() + b"\n")
            self._file.flush()

    def append(self, verdicts: Sequence[Verdict]) -> None:
        """Write those that are not there yet."""
        for verdict in verdicts:
            if verdict.index not in self.verdicts:
                self._file.write(json.dumps(asdict(verdict), ensure_ascii=True).encode() + b"\n")
                self.verdicts[verdict.index] = verdict
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_verdicts(path: str | Path) -> tuple[dict[str, Any], list[Verdict]]:
    """The settings and the verdicts of a finished file, by index.

    Raises:
        ConfigError: There is no such file, or it is unfinished.
        DataError: It is no file of verdicts, or a line is corrupt.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise ConfigError(f"{path}: there are no verdicts; `selfverify data filter` writes them")
    header, verdicts, _ = _parse(path)
    if len(verdicts) < header["problems"]:
        raise ConfigError(
            f"{path} has {len(verdicts)} of {header['problems']} verdicts: call `selfverify data filter` as "
            "before, which goes on"
        )
    return header["settings"], sorted(verdicts, key=lambda verdict: verdict.index)


def _parse(path: Path) -> tuple[dict[str, Any], list[Verdict], int]:
    """Header, verdicts, and where the last whole line ends."""
    *lines, torn = path.read_bytes().split(b"\n")
    if torn and lines:
        log.warning("%s: the last line was cut off while it was written; its problem is judged again", path)
    found: list[Any] = []
    for number, line in enumerate(lines or [torn], start=1):
        try:
            found.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: not valid JSON ({error})") from None
    header, *rows = found
    keys = {"format", "problems", "settings"}
    if not isinstance(header, dict) or header.keys() != keys or header["format"] != FORMAT:
        raise DataError(f"{path}, line 1: not the header of `selfverify data filter` in format {FORMAT}")
    verdicts = []
    for number, row in enumerate(rows, start=2):
        right = isinstance(row, dict) and row.keys() == _FIELDS
        if not right or not isinstance(row["index"], int) or not isinstance(row["samples"], dict):
            raise DataError(f"{path}, line {number}: not a verdict")
        verdicts.append(Verdict(**row))
    twice = [index for index, count in Counter(v.index for v in verdicts).items() if count > 1]
    if twice:
        raise DataError(f"{path}: problem {twice[0]} has two verdicts")
    return header, verdicts, sum(len(line) + 1 for line in lines)


def _difference(found: dict[str, Any], asked: dict[str, Any]) -> str:
    old, new = (dict(_flat({"problems": h["problems"], **h["settings"]})) for h in (found, asked))
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return "; ".join(f"{name} was {old.get(name)!r:.80} and is now {new.get(name)!r:.80}" for name in names)


def _flat(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings by dotted names."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
