"""Exporting stored samples and logged rollouts as trajectories that other programs read (ATIF).

    OUTPUT/
      export.json                        what is exported, and whether it is complete
      problem-000003-sample-01.json      a trajectory, one file each
      images/                            what they show, by content

An export that was killed goes on when it is called again: files that are there already stay.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.files import (
    LOCK_FILE,
    differences,
    make_output_folder,
    only_writer,
    read_regular,
    write_bytes,
    write_json,
)
from selfverify.core.jsonl_store import read_journal
from selfverify.data.images import read_image
from selfverify.evaluation.atif_samples import sample_to_atif
from selfverify.evaluation.samples import IMAGES, Progress, StoredProblem, StoredSample, find_store
from selfverify.experiments.questions import Asked, Questions
from selfverify.rollouts.atif import (
    EXPORT_FILE,
    SHOWN_IMAGES,
    VERSION,
    AtifTrajectory,
    rollout_to_atif,
    without_surrogates,
)
from selfverify.rollouts.recording import RecordedGroup
from selfverify.trainer.rollout_source import NAME, ROLLOUTS_FOLDER

_BY_CONTENT = re.compile(r"[0-9a-f]{32}\.png")


@dataclass(frozen=True, slots=True)
class Portion:
    """Which trajectories are exported.

    Args:
        problems: At most so many problems, the first ones; None takes all.
        limit: At most so many trajectories; None takes all.
        only: The ids of the problems that are exported; empty takes all.
    """

    problems: int | None = None
    limit: int | None = None
    only: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Item:
    """A trajectory that is to be exported.

    Args:
        file: The name of its file.
        make: Makes it.
        place: What errors call it.
        folder: Where its images are.
        images: Their names, which they have in the folder of exported images, too.
        ask: Finds what was asked, where that can be known.
    """

    file: str
    make: Callable[[], AtifTrajectory]
    place: str
    folder: Path
    images: list[str]
    ask: Callable[[], Asked | None] = lambda: None

    def found(self) -> dict[str, Path]:
        """The files of its images by name.

        Raises:
            DataError: One is missing, or its name leads elsewhere.
        """
        return {name: self._file(name) for name in self.images}

    def _file(self, name: str) -> Path:
        path = self.folder / name
        if name != path.name:
            raise DataError(f"{self.place}: {name[:80]!r} is no name of an image in {self.folder}")
        if not path.is_file():
            raise DataError(f"{self.place}: the image {path} is missing; restore it or leave it out")
        return path


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export has come to.

    Args:
        trajectories: Their number.
        new: The number of those that were not there yet.
        images: The number of distinct images.
        unknown: Problems of which only the answers are known, with the reasons.
    """

    trajectories: int
    new: int
    images: int
    unknown: dict[str, str] = field(default_factory=dict)


def export_atif(
    source: Path,
    output: Path,
    portion: Portion | None = None,
    rollouts: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Write a source's trajectories into a folder.

    Args:
        source: The folder of an evaluation or a run, or a sample store. Of a run's two stores that of after
            training is exported.
        output: The folder.
        portion: Which trajectories; by default all.
        rollouts: Whether the logged rollouts of a run's training are exported, not the samples.
        progress: Called after each trajectory.

    Raises:
        ConfigError: There is nothing to export, or ``output`` holds something else, or another process is
            exporting into it.
        DataError: A line of the source is corrupt, or an image is missing or damaged; the message names it.
    """
    portion = portion or Portion()
    held, items, unknown = (_rollouts if rollouts else _samples)(source, portion)
    about = without_surrogates({**held, "format": VERSION, **asdict(portion)})
    shown = [item.found() for item in items]
    make_output_folder(output)
    with only_writer(output):
        _begin(output, about)
        new, copied = _write_all(output, items, shown, progress)
        count = {"complete": True, "trajectories": len(items), "images": copied}
        write_json(output / EXPORT_FILE, {"about": about, **count})
    return Exported(len(items), new, copied, unknown)


def _write_all(
    output: Path, items: list[_Item], shown: list[dict[str, Path]], progress: Progress | None
) -> tuple[int, int]:
    """Write trajectories and what they show; the numbers of new trajectories and of images."""
    new, copied = 0, set[str]()
    for number, (item, images) in enumerate(zip(items, shown, strict=True), start=1):
        for name in images.keys() - copied:
            _put(output / SHOWN_IMAGES / name, _checked(images[name]))
            copied.add(name)
        if (asked := item.ask()) is not None and asked[1] is not None and asked[0]["image"] not in copied:
            _put(output / SHOWN_IMAGES / asked[0]["image"], asked[1])
            copied.add(asked[0]["image"])
        new += _write(output / item.file, item.make())
        if progress is not None:
            progress(number, len(items))
    return new, len(copied)


def _samples(source: Path, portion: Portion) -> tuple[dict[str, Any], list[_Item], dict[str, str]]:
    """What a store's header says, its samples, and problems of which nothing is known."""
    logged = any((source / ROLLOUTS_FOLDER).glob("step-*.jsonl"))
    store = find_store(source, "--rollouts exports its rollout log" if logged else "")
    settings, rows = read_journal(store, StoredProblem)
    by_id = {row.samples[0].problem: row for row in rows.values() if row.samples}
    if not by_id:
        raise ConfigError(f"{store} holds no samples yet")
    questions, items = Questions(store.parent / "gallery", settings), []
    for problem in _chosen(by_id, portion, store):
        row = by_id[problem]
        ask = partial(questions.find, problem, row)
        items += [
            _Item(
                f"problem-{row.index:06d}-sample-{sample.sample:02d}.json",
                partial(_sample, settings, row, sample, ask),
                f"problem {problem}, sample {sample.sample}",
                store.parent / IMAGES,
                [name for step in sample.steps for name in step.images],
                ask,
            )
            for sample in row.samples
        ]
    return {"kind": "samples", "settings": settings}, items[: portion.limit], questions.unknown


def _sample(
    settings: Mapping[str, Any], row: StoredProblem, sample: StoredSample, ask: Callable[[], Asked | None]
) -> AtifTrajectory:
    asked = ask()
    return sample_to_atif(settings, row, sample, None if asked is None else asked[0])


def _rollouts(source: Path, portion: Portion) -> tuple[dict[str, Any], list[_Item], dict[str, str]]:
    """What the headers of a rollout log say in common, and its trajectories."""
    folder = source if source.name == ROLLOUTS_FOLDER else source / ROLLOUTS_FOLDER
    files = sorted(path for path in folder.glob("step-*.jsonl") if NAME.fullmatch(path.name))
    if not files:
        raise ConfigError(
            f"{source} holds no rollout log; a run writes one with learner.rollout_log=all (or recent)"
        )
    read = [(path, *read_journal(path, RecordedGroup)) for path in files]
    for path, header, _ in read:
        if not isinstance(header.get("step", 0), int):
            raise DataError(f"{path}, line 1: its step is {header['step']!r:.40} and no whole number")
    ids = {row.problem: row for *_, rows in read for row in rows.values() if row.trajectories}
    chosen = set(_chosen(ids, portion, folder))
    items = [
        _Item(
            f"step-{header.get('step', 0):06d}-problem-{row.index:04d}-sample-{number:02d}.json",
            partial(rollout_to_atif, header, row, number),
            f"{path.name}: problem {row.problem}, trajectory {number}",
            path.with_suffix(""),
            [f"{name}.png" for segment in trajectory.segments for name in segment.images],
        )
        for path, header, rows in read
        for row in rows.values()
        if row.problem in chosen
        for number, trajectory in enumerate(row.trajectories)
    ]
    settings = {name: value for name, value in read[0][1].items() if name not in ("step", "problems")}
    return {"kind": "rollouts", "settings": settings}, items[: portion.limit], {}


def _chosen(ids: Mapping[str, Any], portion: Portion, source: Path) -> list[str]:
    """The ids of the problems that are exported, in their order."""
    if missing := [name for name in portion.only if name not in ids]:
        some = ", ".join(list(ids)[:3])
        raise ConfigError(f"--only {missing[0]}: {source} holds no such problem; it holds {some}, ...")
    return [name for name in ids if not portion.only or name in portion.only][: portion.problems]


def _begin(output: Path, about: dict[str, Any]) -> None:
    """See that the folder is empty, or holds a part of the same export."""
    marker = output / EXPORT_FILE
    if not marker.exists():
        # What a kill may have left of a first beginning is written anew.
        ours = (LOCK_FILE, f"{EXPORT_FILE}.partial")
        if any(path.name not in ours for path in output.iterdir()):
            raise ConfigError(f"{output} is not empty, and holds no export; choose another folder")
        write_json(marker, {"about": about, "complete": False})
    try:
        found = json.loads(marker.read_text(encoding="utf-8"))["about"]
        changed = differences(found, about)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{marker} is damaged; choose another folder, or delete this one") from None
    if changed:
        raise ConfigError(
            f"{output} holds an export of something else: {'; '.join(changed)}; choose another folder"
        )
    (output / SHOWN_IMAGES).mkdir(exist_ok=True)


def _checked(source: Path) -> bytes:
    """The content of an image's file.

    Raises:
        DataError: It is damaged.
    """
    content = read_regular(source)
    if _BY_CONTENT.fullmatch(source.name) is None or source.parent.name != IMAGES:
        read_image(source, tries=1)
    elif f"{hashlib.blake2b(content, digest_size=16).hexdigest()}.png" != source.name:
        raise DataError(f"the image {source} is damaged: its content is not the one that it is named by")
    return content


def _write(path: Path, trajectory: AtifTrajectory) -> bool:
    """Write a trajectory, unless the same is there; return whether it was written."""
    value = trajectory.model_dump(exclude_none=True)
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=1)
    content = text.encode("utf-8", "replace") + b"\n"
    return _put(path, content)


def _put(path: Path, content: bytes) -> bool:
    """Write a file whole or not at all, unless it is there; return whether it was written.

    One that a power cut has damaged is written anew by the next call.
    """
    if path.exists() and read_regular(path) == content:
        return False
    write_bytes(path, content)
    return True
