"""The sample store: every sampled answer as one JSON line, safe against being killed while writing.

The first line is a header, ``{"format": 1, "samples_per_problem": n, "settings": {...}}``; each further line
is one `Sample`. A problem's samples are written together, so at most the last problem of a file can be
unfinished.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NoReturn, Self

from selfverify.errors import ConfigError, DataError

log = logging.getLogger(__name__)

FORMAT = 1
_START = b'{"format": '
DECODINGS = ("soft", "greedy", "sampled")
"""The ways of reading a score that a sample may carry."""
CORRECT_1 = "correct_1"
"""Among a sample's rewards: whether the first of two answers is right; ``correct`` then is of the second."""


@dataclass(slots=True)
class Sample:
    """One sampled answer to one problem.

    Args:
        problem: The problem's id.
        sample: Its number among the problem's samples, from 0.
        text: Everything the model wrote.
        answer: The canonical answer (a string, a list of numbers, ...); None if it could not be parsed.
        key: The answer as a string that is equal exactly for equal answers, so that votes can be counted;
            None for an unreadable answer and for answers that vary continuously (boxes).
        correct: The task's verdict. For boxes: IoU with the target above 0.5.
        rewards: By name; ``answer`` and ``format`` at least, `CORRECT_1` where there are two turns.
        scores: The score the model gave itself, by decoding (`DECODINGS`); None where it was malformed.
        tokens: Tokens the model wrote.
        logprob: Mean log-probability of the answer's tokens; None where the sampler gave none.
        finish: How it ended: ``stop``, ``length`` or ``error``.
        seed: The seed it was sampled with.
        read_by: Who read the answer: ``rules``, or an extractor (`selfverify.evaluation.extraction`); None
            where nobody could, and in older files.
        digest: `selfverify.tasks.base.problem_digest` of its problem; None in older files.
    """

    problem: str
    sample: int
    text: str
    answer: Any
    key: str | None
    correct: bool
    rewards: dict[str, float]
    scores: dict[str, float | None]
    tokens: int
    logprob: float | None
    finish: str | None
    seed: int
    read_by: str | None = None
    digest: str | None = None


_FIELDS = {field.name for field in fields(Sample)}
_OPTIONAL = {"read_by", "digest"}
_TYPES: dict[str, tuple[type, ...]] = {
    "problem": (str,), "sample": (int,), "text": (str,), "key": (str, type(None)), "correct": (bool,),
    "rewards": (dict,), "scores": (dict,), "logprob": (float, int, type(None)),
    "read_by": (str, type(None)), "digest": (str, type(None)),
}  # fmt: skip


def stored_settings(path: Path) -> dict[str, Any]:
    """The settings a store was written under; empty where its first line cannot be read."""
    with path.open(encoding="utf-8") as file:
        line = file.readline()
    try:
        settings = json.loads(line)["settings"]
    except (ValueError, KeyError, TypeError):
        return {}
    return settings if isinstance(settings, dict) else {}


class SampleStore:
    """An append-only file of samples that a killed evaluation resumes from.

    Opening an existing file repairs what a kill can leave behind (a half-written last line, a last problem
    with too few samples) with a warning, and never touches anything else.

    Args:
        path: The JSON Lines file; its folder is created.
        settings: Whatever determines the samples (model, task, temperature, seed, ...), plain JSON values.
        samples_per_problem: Samples that make a problem complete.

    Raises:
        ConfigError: The file was written under different settings; the message names them.
        DataError: A line in the file is corrupt; the message gives file and line number.
    """

    def __init__(self, path: str | Path, settings: Mapping[str, Any], samples_per_problem: int) -> None:
        self.path = Path(path)
        self.samples_per_problem = samples_per_problem
        header = {"format": FORMAT, "samples_per_problem": samples_per_problem, "settings": dict(settings)}
        line = _dump(header, f"the settings of {path}")
        header = json.loads(line)  # as a reader will see it: lists, not tuples
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._samples: dict[str, list[Sample]] = {}
        if self._existing(header):
            self._file = self.path.open("ab")
        else:
            self._file = self.path.open("wb")
            self._file.write(line)
            self._file.flush()

    def _existing(self, header: dict[str, Any]) -> bool:
        """Take over what is in the file; False if it has to be started anew."""
        if not self.path.exists():
            return False
        found, samples, offsets, end = _parse(self.path)
        if found is None:
            return False
        differing = _differences(found, header)
        if differing:
            raise ConfigError(
                f"{self.path} was written with other settings: {'; '.join(differing)}. "
                "Set them back to go on with it, or write to another path (or delete the file) to start over."
            )
        for number, sample in enumerate(samples):
            self._samples.setdefault(sample.problem, []).append(sample)
            if number and sample.problem != samples[number - 1].problem:
                self._refuse_wrong_count(samples[number - 1].problem, line=number + 2)
        last = samples[-1].problem if samples else None
        if last is not None and len(self._samples[last]) > self.samples_per_problem:
            self._refuse_wrong_count(last, line=len(samples) + 1)
        if last is not None and len(self._samples[last]) < self.samples_per_problem:
            kept = len(samples) - len(self._samples.pop(last))
            log.warning("%s: problem %r was cut off; its samples are drawn again", self.path, last)
            end = offsets[kept]
        if end < self.path.stat().st_size:
            os.truncate(self.path, end)
        return True

    def _refuse_wrong_count(self, problem: str, line: int) -> None:
        count = len(self._samples[problem])
        if count != self.samples_per_problem:
            raise DataError(
                f"{self.path}, line {line}: problem {problem!r} has {count} samples here instead of "
                f"{self.samples_per_problem}. Lines are missing or added; restore the file or delete it."
            )

    @property
    def finished(self) -> dict[str, str | None]:
        """Digests of the problems whose samples are all in the file, by id."""
        return {problem: samples[0].digest for problem, samples in self._samples.items()}

    @property
    def samples(self) -> list[Sample]:
        """All samples, in file order."""
        return [sample for group in self._samples.values() for sample in group]

    def append(self, samples: Sequence[Sample]) -> None:
        """Write all the samples of one problem.

        Raises:
            DataError: They belong to several problems, are not exactly ``samples_per_problem`` with different
                numbers, are of a problem that is already there, or hold what JSON cannot (NaN, an object).
        """
        problems = {sample.problem for sample in samples}
        if len(problems) != 1:
            raise DataError(f"{self.path}: samples of one problem expected, got those of {sorted(problems)}")
        problem = problems.pop()
        if problem in self._samples:
            raise DataError(f"{self.path}: problem {problem!r} is already in the file")
        numbers = [sample.sample for sample in samples]
        if len(numbers) != self.samples_per_problem or len(set(numbers)) != len(numbers):
            needed = f"{self.samples_per_problem} different samples"
            raise DataError(f"{self.path}: problem {problem!r} needs {needed}, got {numbers}")
        lines = [_dump(asdict(sample), f"a sample of problem {problem!r}") for sample in samples]
        self._file.write(b"".join(lines))
        self._file.flush()
        self._samples[problem] = list(samples)

    def close(self) -> None:
        """Close the file; nothing can be appended afterwards."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_samples(path: str | Path) -> tuple[dict[str, Any], list[Sample]]:
    """Settings and samples of a store, without opening it for writing.

    A half-written last line is left out with a warning.

    Raises:
        DataError: The file has no header or a corrupt line.
    """
    header, samples, _, _ = _parse(Path(path))
    if header is None:
        raise DataError(f"{path} has no header line: it is empty or was cut off at its very start")
    return header["settings"], samples


def _parse(path: Path) -> tuple[dict[str, Any] | None, list[Sample], list[int], int]:
    """Header (None if there is none yet), samples, their byte offsets, and the end of the last whole line."""
    *lines, torn = path.read_bytes().split(b"\n")
    if torn:
        log.warning("%s: the last line was cut off while it was written (%d bytes); ignored", path, len(torn))
    if not lines:
        if not torn.startswith(_START) and not _START.startswith(torn):
            _fail(path, 1, f"not the header of a sample store in format {FORMAT}")  # somebody else's file
        return None, [], [], 0
    header = _load(lines[0], path, 1)
    if header.get("format") != FORMAT or not isinstance(header.get("settings"), dict):
        _fail(path, 1, f"not the header of a sample store in format {FORMAT}")
    samples, offsets, seen, end = [], [], set(), len(lines[0]) + 1
    for number, line in enumerate(lines[1:], start=2):
        sample = _sample(_load(line, path, number), path, number)
        if (sample.problem, sample.sample) in seen:
            _fail(path, number, f"sample {sample.sample} of problem {sample.problem!r} appears twice")
        seen.add((sample.problem, sample.sample))
        samples.append(sample)
        offsets.append(end)
        end += len(line) + 1
    return header, samples, offsets, end


def _sample(record: dict[str, Any], path: Path, number: int) -> Sample:
    if wrong := (record.keys() ^ _FIELDS) - (_OPTIONAL - record.keys()):
        _fail(path, number, f"missing or unknown fields: {sorted(wrong)}")
    for name, types in _TYPES.items():
        if not isinstance(record.get(name), types):
            _fail(path, number, f"field {name!r} holds {record[name]!r}")
    for name in ("rewards", "scores"):
        if not all(value is None or isinstance(value, (int, float)) for value in record[name].values()):
            _fail(path, number, f"field {name!r} holds something that is not a number")
    return Sample(**record)


def _load(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        _fail(path, number, f"not valid JSON ({error})")
    if not isinstance(record, dict):
        _fail(path, number, "not a JSON object")
    return record


def _dump(record: Mapping[str, Any], what: str) -> bytes:
    """One line of JSON. A lone surrogate, which UTF-8 cannot hold, becomes "?"."""
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"
    except (TypeError, ValueError) as error:
        message = f"{what} cannot be stored as JSON: {error}. Use None where there is no number."
        raise DataError(message) from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _fail(path: Path, number: int, problem: str) -> NoReturn:
    raise DataError(f"{path}, line {number}: {problem}. Restore the file, or delete it to start over.")


def _differences(found: Any, asked: Any, name: str = "") -> Iterable[str]:
    """One phrase per leaf that differs, nested settings with dotted names."""
    if isinstance(found, dict) and isinstance(asked, dict):
        nested = [
            _differences(found.get(key), asked.get(key), f"{name}.{key}" if name else key)
            for key in sorted(found.keys() | asked.keys())
        ]
        return [phrase for phrases in nested for phrase in phrases]
    return [] if found == asked else [f"{name} was {found!r} and is now {asked!r}"]
