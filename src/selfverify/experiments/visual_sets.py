"""Data sets of traces: those for supervised fine-tuning, and pairs for the verifier (VTS-V §4.2).

They are made of a folder's journals (`visual_data`), problem by problem, so that memory does not grow with
the number of traces (`make_sets`). `export_looks` writes them as other trainers read them, with all images:

    OUTPUT/                 for LLaMA-Factory (its ``dataset_dir``)
      dataset_info.json     names the two data sets below
      looks_sft.jsonl       ``messages`` and ``images``, an image's place being ``<image>``
      looks_pairs.jsonl     ``messages``, ``chosen``, ``rejected`` and ``images``
      images/

    OUTPUT/                 for ms-swift (its ``ROOT_IMAGE_DIR``)
      sft.jsonl             ``messages`` and ``images``
      pairs.jsonl           ``messages`` and ``images``, ``rejected_messages`` and ``rejected_images``
      images/

    OUTPUT/                 for TRL and `datasets`
      sft.parquet           ``messages`` and ``images``
      pairs.parquet         ``prompt``, ``chosen``, ``rejected`` and ``images``

ms-swift's pairs are whole conversations with images anywhere. Each turn of the model says in ``loss`` whether
it is learnt: all of a trace's, and of a pair those behind what both sides have in common (Eq. 11), whose
log-ratios would cancel.

A side of a pair is one message for LLaMA-Factory. TRL's `DPOTrainer` (1.16) takes the images of the prompt
only, and learns every token of a completion, also what a tool has said. So for these two the sides end with
their first turns; the prompt has all that was shown before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal

from pydantic import TypeAdapter

from selfverify.core.errors import DataError, needs
from selfverify.core.files import (
    make_folder,
    naming,
    only_writer,
    write_bytes,
    write_json,
    written_whole,
)
from selfverify.core.jsonl_store import json_line
from selfverify.evaluation.samples import IMAGES, Progress
from selfverify.experiments.command_config import TeacherConfig
from selfverify.experiments.export import checked_image
from selfverify.experiments.visual_data import TraceIndex, read_lines
from selfverify.experiments.visual_judge import (
    VERDICTS,
    JudgedLooks,
    Verdicts,
    judge_answers,
    settled_by_rules,
)
from selfverify.rollouts.wrappers import Message
from selfverify.visual.pairs import Balance, Pair, Pairing, problem_pairs
from selfverify.visual.traces import Curation, VisualTrace, is_image, malformed_message, parts_of

SFT, PAIRS, ABOUT = "sft.jsonl", "pairs.jsonl", "data.json"


def read_pairs(path: Path) -> Iterator[Pair]:
    """Yield the pairs of a file, or of the file in a folder; their images are named as seen from beside it.

    Raises:
        ConfigError: There is no such file.
        DataError: A line is no pair, or its pair stands there twice; the message names it.
    """
    path = path / PAIRS if path.is_dir() else path
    lines = dict[str, int]()
    for number, pair in read_lines(path, Pair):
        if why := _pair_fault(pair) or stands_twice(pair.id, number, lines):
            raise DataError(f"{path}, line {number}: {why}")
        yield pair


def stands_twice(id: str, number: int, lines: dict[str, int]) -> str:
    """Return the fault of an id that stands in a line before, since it would be learnt twice; else empty.

    ``lines`` has the ids of the file's lines so far, with their numbers; this one is added to it.
    """
    first = lines.setdefault(id, number)
    return "" if first == number else f"{id[:200]} stands in line {first}, too; take one of them out"


def _pair_fault(pair: Pair) -> str:
    """Return the fault of a pair whose fields have the right types; empty where nothing is."""
    for name, messages in (("prompt", pair.prompt), ("chosen", pair.chosen), ("rejected", pair.rejected)):
        if why := fault_in(messages):
            return f"{name}: {why}"
        if name != "prompt" and not messages[0]["role"] == messages[-1]["role"] == "assistant":
            return f"{name}: it begins and ends with a turn of the assistant"
    return ""


def fault_in(messages: Sequence[Message]) -> str:
    """Return the fault of the form of a conversation, or of a part of one; empty where nothing is."""
    for place, message in enumerate(messages):
        if why := malformed_message(message):
            return f"message {place}: {why}"
        if message["role"] == "assistant" and not isinstance(message["content"], str):
            return f"message {place}: a turn is no text"
    return "" if messages else "it has no messages"


def judge_looks(
    folder: Path, judge: TeacherConfig, votes: int = 1, progress: Progress | None = None
) -> JudgedLooks:
    """Ask a model about the answers of a folder's traces, right and wrong ones, that rules do not settle.

    Args:
        folder: See the module's docstring.
        judge: The model: a server.
        votes: How often it is asked about each answer.
        progress: Called after each batch.

    Raises:
        ConfigError: The judge is no server, nothing was collected, the verdicts were made otherwise, or
            another process is judging.
        DataError: A journal is damaged, or a problem has no question in words.
        ServerError: The server fails.
    """
    index, done = TraceIndex(folder), 0

    def ended() -> Iterator[tuple[dict[str, Any], VisualTrace]]:
        nonlocal done
        for source, _, row in index.rows():
            for about, trace in index.traces_of(source, row):
                if not trace.lost and trace.finish == "stop" and trace.turns:
                    yield about, trace
            done += 1

    def on_batch() -> None:
        if progress is not None:
            progress(done, index.lines)

    with only_writer(folder):  # two would ask for the same, and write it twice
        return judge_answers(ended(), folder / VERDICTS, judge, votes, on_batch)


@dataclass(slots=True)
class Sets:
    """The outcome for a folder's traces.

    Args:
        traces: How many there were.
        sft: How many are in ``sft.jsonl``.
        pairs: How many pairs are in ``pairs.jsonl``.
        sft_dropped: How many traces are not in ``sft.jsonl``, by the reason.
        pairs_dropped: How many traces and possible pairs are not in ``pairs.jsonl``, by the reason.
        kinds: How many pairs there are of each kind and source.
        decided: How many pairs there are by who decided: rules, a judge, or one side each.
        named: For each reason the first trace or problem.
    """

    traces: int = 0
    sft: int = 0
    pairs: int = 0
    sft_dropped: dict[str, int] = field(default_factory=dict)
    pairs_dropped: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    decided: dict[str, int] = field(default_factory=dict)
    named: dict[str, str] = field(default_factory=dict)


def make_sets(folder: Path, pairing: Pairing, most_tokens: int = 20_000, judged: bool = False) -> Sets:
    """Write ``sft.jsonl``, ``pairs.jsonl`` and ``data.json`` from what was collected in a folder.

    D_SFT has the right traces that were sampled or branched, D_DPO the pairs. Of the same traces the same
    files come, so that the call may be made again at any time. Problems are read one after another.

    Whether an answer is right is said by rules or by a model (`visual_judge`). Without verdicts an answer in
    free words that rules find wrong may be right in other words, and takes no part.

    Args:
        folder: See the module's docstring.
        pairing: How pairs are made.
        most_tokens: Longer traces are dropped; see `Curation`.
        judged: Whether answers in free words, right and wrong ones, are as a model has said
            (``verdicts.jsonl``).

    Raises:
        ConfigError: Nothing was collected, or nothing was judged.
        DataError: A journal is damaged, or no right trace is left; the message says what was dropped and why.
    """
    index = TraceIndex(folder)
    verdicts = Verdicts(folder / VERDICTS) if judged else None
    found, curation = Sets(), Curation(folder / IMAGES, most_tokens)
    unwanted, dropped = Counter[str](), Counter[str]()
    balance, kinds, decided = Balance(), Counter[str](), Counter[str]()
    with naming(folder / PAIRS), TemporaryFile(dir=folder) as spool:
        with written_whole(folder / SFT) as partial, partial.open("wb") as sft:
            for known in index.by_problem():
                found.traces += len(known)
                about = {trace.id: about for about, trace in known}
                kept = [
                    trace
                    for trace in curation.take(trace for _, trace in known)
                    if not curation.drop(trace, _undecided(about[trace.id], trace, verdicts))
                ]
                for trace in kept:
                    why = _WHY_NOT.get(trace.source) or ("" if trace.correct else "their answer is wrong")
                    if why:
                        unwanted[why] += 1
                    else:
                        sft.write(json_line(sft_line(trace)))
                        found.sft += 1
                for pair in problem_pairs(kept, pairing, dropped):
                    balance.count(pair)
                    spool.write(json_line(pair_line(pair)))
            found.sft_dropped = dict(index.unusable + curation.dropped + unwanted)
            if not found.sft:
                raise DataError(_nothing(folder, found))
        spool.seek(0)
        with written_whole(folder / PAIRS) as partial, partial.open("wb") as file:
            for line in spool:
                pair = _PAIR.validate_json(line)
                if not pairing.match_lengths or balance.keeps(pair, dropped):
                    file.write(line)
                    kinds[f"{pair.kind}, {pair.source}"] += 1
                    decided[" and ".join(dict.fromkeys((pair.chosen_by, pair.rejected_by)))] += 1
    found.pairs, found.kinds, found.decided = kinds.total(), dict(kinds), dict(decided)
    found.pairs_dropped = dict(curation.dropped + dropped)
    found.named = index.named | curation.named
    demands = {"most_tokens": most_tokens}
    write_json(folder / ABOUT, {"demands": demands, "pairing": asdict(pairing), **asdict(found)})
    return found


_PAIR = TypeAdapter(Pair)


def _undecided(about: Mapping[str, Any], trace: VisualTrace, verdicts: Verdicts | None) -> str:
    """Return why it is not known whether a trace is right; empty where it is."""
    if verdicts is not None:
        return verdicts.decide(about, trace)
    if trace.correct or settled_by_rules(about, trace.answer):
        return ""
    return "the answer is in free words, of which rules cannot say that they are wrong; judge them first"


def _nothing(folder: Path, found: Sets) -> str:
    reasons = ", ".join(f"{count} because {why}" for why, count in found.sft_dropped.items())
    return f"{folder}: no right trace is left of {found.traces}; dropped: {reasons or 'none'}"


_WHY_NOT = {
    "induced": "they were induced to be wrong", "hurried": "they were told to answer at once"
}  # fmt: skip
"""Why traces are not imitated, by their source."""


def sft_line(trace: VisualTrace) -> dict[str, Any]:
    """A line of ``sft.jsonl``."""
    return {
        "id": trace.id,
        "question_id": trace.problem,
        "data_source": trace.task,
        "category": trace.category,
        "messages": in_folder(trace.messages),
        "cuts": trace.cuts,
        "steps": trace.steps,
    }


def pair_line(pair: Pair) -> dict[str, Any]:
    """A line of ``pairs.jsonl``."""
    line = asdict(pair)
    return line | {name: in_folder(line[name]) for name in ("prompt", "chosen", "rejected")}


def in_folder(messages: Iterable[Message]) -> list[Message]:
    """Messages whose images are named as seen from beside the folder of images."""
    found = []
    for message in messages:
        content = message["content"]
        if not isinstance(content, str):
            parts = parts_of(message)
            content = [p | {"image": f"{IMAGES}/{p['image']}"} if is_image(p) else p for p in parts]
        found.append({"role": message["role"], "content": content})
    return found


MARK = "<image>"
"""The place of an image in a text."""
RESERVED = (MARK, "<video>", "<audio>")
"""The texts that LLaMA-Factory takes for places."""
OF_SWIFT = (*RESERVED, "<bbox>", "<ref-object>")
"""Those that ms-swift does."""
Target = Literal["llama-factory", "ms-swift", "trl"]
_BATCH = 64


def export_looks(folder: Path, output: Path, target: Target) -> tuple[int, int, int]:
    """Write a folder's ``sft.jsonl`` and ``pairs.jsonl`` for another trainer.

    Args:
        folder: A folder of data of looking again (`visual_data`).
        output: The folder that is written; files in it with the same names are replaced.
        target: Whose form.

    Returns:
        How many traces and pairs, and how many different images, were written.

    Raises:
        ConfigError: There are no such files, or `datasets` is not installed.
        DataError: A line is damaged, an image is gone, or a text has a place for an image of its own.
    """
    traces = sum(1 for _ in _traces(folder))  # nothing is written of what is damaged
    pairs = sum(1 for _ in read_pairs(folder))
    make_folder(output)
    shown = _ExportedImages(folder, None if target == "trl" else output)
    match target:
        case "trl":
            _parquet(output / "sft.parquet", (_trl(row, shown) for row in _traces(folder)), ("messages",))
            _parquet(output / "pairs.parquet", (_trl(row, shown) for row in _short_sides(folder)), _SIDES)
        case "ms-swift":
            _write(
                output / "sft.jsonl", (_swift(row["messages"], shown, row["id"]) for row in _traces(folder))
            )
            _write(output / "pairs.jsonl", (_swift_pair(pair, shown) for pair in read_pairs(folder)))
        case "llama-factory":
            _write(output / "looks_sft.jsonl", (_factory(row, shown) for row in _traces(folder)))
            _write(output / "looks_pairs.jsonl", (_factory(row, shown) for row in _short_sides(folder)))
            write_bytes(output / _FACTORY_INFO.name, _FACTORY_INFO.read_bytes())
    return traces, pairs, len(shown.names)


def _short_sides(folder: Path) -> Iterator[dict[str, Any]]:
    """The pairs whose sides are their first turns."""
    for pair in read_pairs(folder):
        sides = {"chosen": pair.chosen[:1], "rejected": pair.rejected[:1]}
        yield {"id": pair.id, "prompt": pair.prompt, **sides}


_SIDES = ("prompt", "chosen", "rejected")
_FACTORY_INFO = Path(__file__).with_name("dataset_info.json")
"""LLaMA-Factory's description of the two data sets, which stands beside them."""


class _ExportedImages:
    """The images that are shown, by the names in a folder; with an output they are copied into it."""

    def __init__(self, folder: Path, output: Path | None) -> None:
        self.folder, self.output = folder, output
        self.names: set[str] = set()

    def content(self, name: str) -> bytes:
        """An image's bytes.

        Raises:
            DataError: It is gone or damaged, or its name leads elsewhere.
        """
        plain = Path(name).name
        if name != f"{IMAGES}/{plain}":
            raise DataError(f"{name[:80]!r} is no name of an image in {self.folder / IMAGES}")
        found = checked_image(self.folder / name)
        if self.output is not None and plain not in self.names:
            make_folder(self.output / IMAGES)
            write_bytes(self.output / IMAGES / plain, found)
        self.names.add(plain)
        return found

    def packed(self, messages: Iterable[Message]) -> list[dict[str, Any]]:
        """The images within messages, with their bytes, as `datasets` has them in Parquet."""
        names = [part["image"] for message in messages for part in parts_of(message) if is_image(part)]
        return [{"bytes": self.content(name), "path": Path(name).name} for name in names]

    def within(self, messages: Iterable[Message]) -> list[str]:
        """The names of the images within messages."""
        return [f"{IMAGES}/{image['path']}" for image in self.packed(messages)]


def _traces(folder: Path) -> Iterator[dict[str, Any]]:
    path = folder / SFT
    lines = dict[str, int]()
    for number, line in read_lines(path):
        messages = line.get("messages")
        if not isinstance(messages, list) or not isinstance(line.get("id"), str):
            raise DataError(f"{path}, line {number}: it is no trace")
        why = fault_in([message if isinstance(message, dict) else {} for message in messages])
        if why := why or stands_twice(line["id"], number, lines):
            raise DataError(f"{path}, line {number}: {why}")
        yield line


def _marked(messages: Iterable[Message], name: str, reserved: Sequence[str] = RESERVED) -> list[Message]:
    """Messages as texts in which images have places."""
    found = []
    for message in messages:
        words = ""
        for part in parts_of(message):
            if not is_image(part) and (
                taken := next((mark for mark in reserved if mark in part["text"]), None)
            ):
                raise DataError(f"{name}: a text has {taken} in it, which the trainer takes for a place")
            words += MARK if is_image(part) else part["text"]
        found.append({"role": message["role"], "content": words})
    return found


def _swift(messages: Sequence[Message], shown: _ExportedImages, name: str, before: int = 0) -> dict[str, Any]:
    """A conversation as ms-swift has it; turns behind the first ``before`` messages are learnt."""
    found = _marked(messages, name, OF_SWIFT)
    for place, message in enumerate(found):
        if message["role"] == "assistant":
            message["loss"] = place >= before
    return {"messages": found, "images": shown.within(messages)}


def _swift_pair(pair: Pair, shown: _ExportedImages) -> dict[str, Any]:
    before = len(pair.prompt)
    chosen = _swift([*pair.prompt, *pair.chosen], shown, pair.id, before)
    rejected = _swift([*pair.prompt, *pair.rejected], shown, pair.id, before)
    return chosen | {f"rejected_{name}": value for name, value in rejected.items()}


def _factory(row: Mapping[str, Any], shown: _ExportedImages) -> dict[str, Any]:
    """A trace or a pair as LLaMA-Factory has it: a pair's prompt is its messages, a side one message."""
    name, talk = row["id"], row["messages" if "messages" in row else "prompt"]
    sides = {side: _marked(row[side], name)[0] for side in _SIDES[1:] if side in row}
    return {"id": name, "messages": _marked(talk, name), **sides, "images": shown.within(talk)}


def _places(messages: Iterable[Message]) -> list[Message]:
    """Messages whose contents are parts, with places for images."""
    return [
        {
            "role": message["role"],
            "content": [
                {"type": "image", "text": None} if is_image(part) else {"type": "text", "text": part["text"]}
                for part in parts_of(message)
            ],
        }
        for message in messages
    ]


def _trl(row: Mapping[str, Any], shown: _ExportedImages) -> dict[str, Any]:
    """A trace or a pair as TRL has it; the images are those of its first part."""
    talks = {name: row[name] for name in ("messages", *_SIDES) if name in row}
    images = shown.packed(next(iter(talks.values())))
    return {"id": row["id"], **{name: _places(talk) for name, talk in talks.items()}, "images": images}


def _write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with written_whole(path) as partial, partial.open("wb") as file:
        file.writelines(map(json_line, rows))


def _parquet(path: Path, rows: Iterable[Mapping[str, Any]], talks: Sequence[str]) -> None:
    """Write Parquet whose columns of images `datasets` decodes."""
    with needs(f"{path}: Parquet needs datasets", "data"):
        import pyarrow as pa
        import pyarrow.parquet as parquet
        from datasets import Features, Value
        from datasets import Image as ImageFeature
    text = Value("string")
    talk = [{"role": text, "content": [{"type": text, "text": text}]}]
    schema = Features({"id": text, **dict.fromkeys(talks, talk), "images": [ImageFeature()]}).arrow_schema
    left = iter(rows)
    with written_whole(path) as partial, parquet.ParquetWriter(partial, schema) as writer:
        while batch := list(islice(left, _BATCH)):
            writer.write_table(pa.Table.from_pylist(batch, schema=schema))
