"""Stored samples and logged rollouts as files for other programs: ATIF trajectories, conversations.

    OUTPUT/
      export.json                        what is exported; it is written last
      problem-000003-sample-01.json      a trajectory, one file each (`sample_to_atif`)
      images/                            what they show, by content

`export_conversations` writes one file for fine-tuning, in verl's ``messages`` and ``tools``.

The questions and images of the samples' problems are in the gallery or made anew, because the store itself
does not have them (`Questions`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from selfverify.core.errors import ConfigError, DataError, SelfVerifyError
from selfverify.core.files import make_folder, read_regular, write_bytes, write_json
from selfverify.core.images import png
from selfverify.core.jsonl_store import read_journal
from selfverify.core.problem import Problem
from selfverify.data.conversations import check_output, write_conversations
from selfverify.data.images import file_inside, read_image
from selfverify.evaluation.evaluate import shown_entry
from selfverify.evaluation.samples import IMAGES, Progress, StoredProblem, StoredSample, find_store
from selfverify.experiments.registry import make_task
from selfverify.policy.chat import text_only
from selfverify.reports.run_data import read_entries
from selfverify.rollouts.atif import (
    EXPORT_FILE,
    SHOWN_IMAGES,
    VERSION,
    Message,
    rollout_to_atif,
    to_question,
    to_steps,
    to_trajectory,
    without_end,
    without_surrogates,
)
from selfverify.rollouts.recording import RecordedGroup
from selfverify.tasks.answering import ended_properly
from selfverify.tasks.base import Task
from selfverify.trainer.rollout_source import NAME, ROLLOUTS_FOLDER


class Remade:
    """Problems of stored samples, made anew as the store's header says.

    Args:
        settings: The store's header.

    Attributes:
        task: The task; None where there is none any more.
        why: Why there is none.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._split: Any = settings.get("split", "test")
        self.task: Task | None = None
        try:
            self.task = make_task(str(settings.get("task")), **(settings.get("task_options") or {}))
        except (SelfVerifyError, ValidationError, TypeError) as error:
            self.why = str(error).partition("\n")[0]

    def problem(self, row: StoredProblem) -> Problem | str:
        """The problem of a line of the store, or why there is none."""
        if self.task is None:
            return self.why
        try:
            made = self.task.problem(self._split, 0, row.index)
        except SelfVerifyError as error:
            return str(error)
        stored = row.samples[0].problem if row.samples else made.id
        if (made.id, made.digest()) != (stored, row.digest):
            return "it asks or wants something else now; the data has changed"
        return made


Asked = tuple[dict[str, Any], bytes | None]
"""A problem's entry, as in ``gallery/problems.json``, and its encoded image, if it has one."""


class Questions:
    """Finds problems in the gallery beside their samples, or makes them anew, as the store's header says.

    Args:
        gallery: The gallery's folder.
        settings: The store's header.

    Raises:
        DataError: The gallery is damaged.
    """

    def __init__(self, gallery: Path, settings: Mapping[str, Any]) -> None:
        self.gallery = gallery
        self.unknown: dict[str, str] = {}
        """Problems of which nothing is known, with the reasons."""
        try:
            entries = without_surrogates(read_entries(gallery))
        except ValueError as error:
            raise DataError(f"{gallery / 'problems.json'} is not valid JSON ({error})") from None
        self._entries: dict[str, dict[str, Any]] = {str(entry["id"]): entry for entry in entries}
        self._remade = Remade(settings)
        self._last: tuple[str, Asked | None] = ("", None)

    def find(self, problem: str, row: StoredProblem) -> Asked | None:
        """Return what was asked in a line of the store; None where that cannot be known any more.

        The image is called ``problem-INDEX.SUFFIX`` in the entry.

        Raises:
            DataError: The image of a problem in the gallery is missing.
        """
        if self._last[0] != problem:
            known = self._entries.get(problem)
            found = self._made(problem, row) if known is None else self._kept(problem, row, known)
            self._last = problem, found
        return self._last[1]

    def _kept(self, problem: str, row: StoredProblem, entry: dict[str, Any]) -> Asked:
        if not entry.get("image"):
            return entry, None
        file = file_inside(self.gallery, str(entry["image"]))
        try:
            content = read_regular(file)
        except OSError as error:
            raise DataError(f"problem {problem}: the image {file} cannot be read: {error.strerror}") from None
        return entry | {"image": f"problem-{row.index:06d}{file.suffix}"}, content

    def _made(self, problem: str, row: StoredProblem) -> Asked | None:
        made = self._remade.problem(row)
        if isinstance(made, str) or self._remade.task is None:
            self.unknown[problem] = str(made)
            return None
        name = f"problem-{row.index:06d}.png"
        entry: dict[str, Any] = without_surrogates(shown_entry(self._remade.task, made, name))
        return entry, png(made.images[0]) if made.images else None


def sample_to_atif(
    settings: Mapping[str, Any], row: StoredProblem, sample: StoredSample, ask: Callable[[], Asked | None]
) -> dict[str, Any]:
    """Return a sample as a trajectory. Images are in the folder ``images`` beside its file.

    Args:
        settings: The store's settings.
        row: The line of the store that the sample stands in.
        sample: The sample.
        ask: Finds what the report's gallery knows of the problem: question, target, image (as it is called in
            the folder of images); the question and the image become the first step.
    """
    entry, _ = ask() or (None, None)
    fields = asdict(replace(sample, steps=[]))
    del fields["steps"], fields["text"]
    if sample.steps:
        messages = []
        for step in sample.steps:
            about = {name: value for name, value in asdict(step).items() if name not in ("text", "images")}
            messages.append(Message(step.text, step.images, about, step.channel, step.finish))
        if sample.text != "".join(step.text for step in sample.steps):
            fields["text"] = sample.text
    else:
        numbers = {"completion_tokens": sample.tokens}
        about = {"author": "policy", "turn": 0, "finish": sample.finish}
        messages = [Message(sample.text, [], about, "", sample.finish, numbers)]
    steps = to_steps(messages, [] if entry is None else [to_question(entry)])
    ours = {
        "kind": "sample",
        "settings": dict(settings),
        "index": row.index,
        "digest": row.digest,
        "conversation": bool(sample.steps),
        "sample": fields,
        "entry": entry,
    }
    text = json.dumps(settings, sort_keys=True).encode("utf-8", "replace")
    session = hashlib.blake2b(text, digest_size=8).hexdigest()
    name = f"{sample.problem}#{sample.sample}"
    return to_trajectory(session, name, settings.get("model"), steps, sample.tokens, ours)


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
        place: Its name in errors.
        folder: Where its images are.
        images: Their names, which they have in the folder of exported images, too.
        ask: Finds what was asked, where that can be known.
    """

    file: str
    make: Callable[[], dict[str, Any]]
    place: str
    folder: Path
    images: list[str]
    ask: Callable[[], Asked | None] = lambda: None

    def check_images(self) -> None:
        """See that its images are there.

        Raises:
            DataError: One is missing, or its name leads elsewhere.
        """
        for name in self.images:
            path = self.folder / name
            if name != path.name:
                raise DataError(f"{self.place}: {name[:80]!r} is no name of an image in {self.folder}")
            if not path.is_file():
                raise DataError(f"{self.place}: the image {path} is missing; restore it or leave it out")


@dataclass(frozen=True, slots=True)
class Exported:
    """The outcome of an export.

    Args:
        trajectories: Their number.
        images: The number of distinct images.
        unknown: Problems of which only the answers are known, with the reasons.
    """

    trajectories: int
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
        output: The folder, a new or an empty one.
        portion: Which trajectories; by default all.
        rollouts: Whether the logged rollouts of a run's training are exported, not the samples.
        progress: Called after each trajectory.

    Raises:
        ConfigError: There is nothing to export, or ``output`` is not empty.
        DataError: A line of the source is corrupt, or an image is missing or damaged; the message names it.
    """
    portion = portion or Portion()
    held, items, unknown = (_rollouts if rollouts else _samples)(source, portion)
    about = without_surrogates({**held, "format": VERSION, **asdict(portion)})
    for item in items:
        item.check_images()
    make_folder(output)
    if any(output.iterdir()):
        raise ConfigError(f"{output} is not empty; choose another folder")
    make_folder(output / SHOWN_IMAGES)
    copied = set[str]()
    for number, item in enumerate(items, start=1):
        for name in {*item.images} - copied:
            write_bytes(output / SHOWN_IMAGES / name, checked_image(item.folder / name))
            copied.add(name)
        entry, image = item.ask() or ({}, None)
        if image is not None and entry["image"] not in copied:
            write_bytes(output / SHOWN_IMAGES / entry["image"], image)
            copied.add(entry["image"])
        text = json.dumps(item.make(), ensure_ascii=False, allow_nan=False, indent=1)
        write_bytes(output / item.file, text.encode("utf-8", "replace") + b"\n")
        if progress is not None:
            progress(number, len(items))
    count = {"complete": True, "trajectories": len(items), "images": len(copied)}
    write_json(output / EXPORT_FILE, {"about": about, **count})
    return Exported(len(items), len(copied), unknown)


def _samples(source: Path, portion: Portion) -> tuple[dict[str, Any], list[_Item], dict[str, str]]:
    """Return a store's header, its samples, and problems of which nothing is known."""
    logged = any((source / ROLLOUTS_FOLDER).glob("step-*.jsonl"))
    store = find_store(source, "its rollout log can be exported instead" if logged else "")
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
                partial(sample_to_atif, settings, row, sample, ask),
                f"problem {problem}, sample {sample.sample}",
                store.parent / IMAGES,
                [name for step in sample.steps for name in step.images],
                ask,
            )
            for sample in row.samples
        ]
    return {"kind": "samples", "settings": settings}, items[: portion.limit], questions.unknown


def _rollouts(source: Path, portion: Portion) -> tuple[dict[str, Any], list[_Item], dict[str, str]]:
    """Return the common header of a rollout log, and its trajectories."""
    folder = source if source.name == ROLLOUTS_FOLDER else source / ROLLOUTS_FOLDER
    files = sorted(path for path in folder.glob("step-*.jsonl") if NAME.fullmatch(path.name))
    if not files:
        raise ConfigError(f"{source} holds no rollout log; learner.checkpoint.rollout_log=all writes one")
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
        raise ConfigError(f"{source} holds no problem {missing[0]}; it holds {some}, ...")
    return [name for name in ids if not portion.only or name in portion.only][: portion.problems]


def checked_image(source: Path) -> bytes:
    """Return the content of an image's file.

    Raises:
        DataError: It is missing or damaged.
    """
    try:
        content = read_regular(source)
    except OSError as error:
        raise DataError(f"the image {source} is missing ({error.strerror})") from None
    if _BY_CONTENT.fullmatch(source.name) is None or source.parent.name != IMAGES:
        read_image(source, tries=1)
    elif f"{hashlib.blake2b(content, digest_size=16).hexdigest()}.png" != source.name:
        raise DataError(f"the image {source} is damaged: its content is not the one that it is named by")
    return content


Keep = Literal["all", "correct", "judged"]
"""Which samples are worth learning from: all, those that are right, or those that judges found a success."""


@dataclass(slots=True)
class Written:
    """The outcome of an export.

    Args:
        conversations: Their number.
        left_out: How many samples were left out, by the reason.
    """

    conversations: int = 0
    left_out: dict[str, int] = field(default_factory=dict)


def export_conversations(
    store: Path, output: Path, keep: Keep = "all", problems: int | None = None, limit: int | None = None
) -> Written:
    """Write the conversations of a sample store.

    Args:
        store: A ``samples.jsonl``.
        output: The file, ``.parquet`` or ``.jsonl``.
        keep: Which samples.
        problems: At most so many problems, the first ones.
        limit: At most so many conversations.

    Raises:
        ConfigError: The output cannot be written, or the store's task cannot be made any more.
        DataError: The store is damaged, or no conversation is left.
    """
    check_output(output)
    settings, rows = read_journal(store, StoredProblem)
    remade, written = Remade(settings), Written()
    if remade.task is None:
        raise ConfigError(f"{store}: what was asked cannot be found: {remade.why}")

    def conversations() -> Iterator[dict[str, Any]]:
        for row in list(rows.values())[:problems]:
            for sample in row.samples:
                if written.conversations == limit:
                    return
                line = why_unwanted(keep, sample.correct, sample.rewards) or _row(
                    remade, row, sample, str(settings.get("task", ""))
                )
                if isinstance(line, str):
                    written.left_out[line] = written.left_out.get(line, 0) + 1
                else:
                    written.conversations += 1
                    yield line

    try:
        write_conversations(output, conversations())
    except DataError as error:
        left = ", ".join(f"{count} because {why}" for why, count in written.left_out.items())
        raise DataError(f"{store}: {error}; left out: {left or 'none'}") from None
    return written


def why_unwanted(keep: Keep, correct: bool, rewards: Mapping[str, float]) -> str:
    """Why a conversation is not worth learning from, by its rewards; empty where it is."""
    if keep == "correct" and not correct:
        return "they are wrong"
    if keep == "correct" and not ended_properly(rewards):
        return "they came to no proper end"
    if keep == "judged" and not rewards.get("judged_success"):
        return "no judge found them a success"
    return ""


def _row(remade: Remade, row: StoredProblem, sample: StoredSample, source: str) -> dict[str, Any] | str:
    """A line of the file, or why there is none."""
    if not (sample.steps or sample.text):
        return "nothing was said"
    problem = remade.problem(row)
    if isinstance(problem, str):
        return problem
    if problem.images or any(step.images for step in sample.steps):
        return "they show images, and files of conversations hold text"
    messages = asked_messages(problem)
    for step in sample.steps:
        if step.author == "policy":
            if not (words := without_end(step.text)).strip():
                return "nothing is said in one of their turns"
            messages.append({"role": "assistant", "content": words})
            continue
        record = step.record or {}
        if "said" not in record:
            return "where a reply begins is not stored"
        start, end = record["said"]
        messages.append({"role": str(record["role"]), "content": step.text[start:end]})
    if not sample.steps:
        messages.append({"role": "assistant", "content": without_end(sample.text)})
    name = f"{sample.problem}#{sample.sample}"
    return conversation_row(problem, messages, name, source, sample.rewards, sample.correct)


def conversation_row(
    problem: Problem,
    messages: list[dict[str, Any]],
    name: str,
    source: str,
    rewards: Mapping[str, float],
    correct: bool,
) -> dict[str, Any]:
    """A line of a file for fine-tuning: a conversation about a problem of the task called ``source``."""
    category = str(problem.meta.get("category") or "")
    return {
        "messages": messages, "tools": problem.tools, "id": name, "data_source": source, "category": category,
        "reward": float(rewards.get("answer", 0.0)), "correct": correct,
    }  # fmt: skip


def asked_messages(problem: Problem) -> list[dict[str, str]]:
    """A problem's messages as roles and texts.

    Raises:
        DataError: A message has a part that is no text.
    """
    return [{"role": str(m["role"]), "content": str(m["content"] or "")} for m in text_only(problem)]
