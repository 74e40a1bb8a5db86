"""One pass over a data file: what is in it, what a model will see of it, and what is broken."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.policy_config import PolicyConfig
from selfverify.core.problem import Problem
from selfverify.core.tags import parse_tagged
from selfverify.data.fields import Row, filled, shown
from selfverify.data.images import ImageRef, decode_image
from selfverify.data.questions import COLUMNS, GROUPINGS
from selfverify.data.rows import BadRow, Rows
from selfverify.policy.encoding import Encoder, Prompt
from selfverify.policy.loading import load_structure
from selfverify.tasks.base import user_turn
from selfverify.tasks.conversations import Conversations, Preferences
from selfverify.tasks.grounding import Grounding
from selfverify.tasks.math import Math
from selfverify.tasks.mobile import Mobile
from selfverify.tasks.row_task import RowTask, clip_box

NAMED = 5
"""How many of the longest prompts and of the duplicates are named."""

Size = tuple[int, int]
"""Width and height in pixels."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The smallest, the middle and the largest of some values."""

    min: float
    median: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Return the spread of values; None where there are none."""
        return cls(min(values), float(np.median(values)), max(values)) if values else None

    def __str__(self) -> str:
        if self.min == self.max:
            return f"{self.min:,.0f}"
        return f"{self.min:,.0f} to {self.max:,.0f} (median {self.median:,.0f})"


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A problem as the model sees it. In ``text`` the placeholders of an image stand as their number."""

    id: str
    text: str
    images: list[Size]
    tokens: int
    target: Any


@dataclass(slots=True)
class Checked:
    """The contents of a data file.

    Args:
        path: The file or folder.
        format: Its format.
        model: The model whose tokens are counted.
        broken: The rows that cannot be used.
        columns: The fields of rows that have other names in the file, with these: ``question`` of
            ``problem``.
        unread: Columns that are not read.
        model_reads: The longest prompt that the model reads, where its config says so.
        rows: The number of rows that can be used, images included.
        kinds: The number of rows by what they ask for (`kind_of`).
        categories: The number of rows by category, the largest first.
        images: The number of rows by the number of their images.
        distinct_images: The number of images with different contents.
        width: Of the distinct images, in pixels.
        height: Of the distinct images, in pixels.
        image_bytes: The encoded bytes of the distinct images.
        prompt_tokens: Tokens of a problem, images included.
        image_tokens: Tokens of a problem's images.
        too_long: The number of problems that are longer.
        longest: The longest prompts: id, place, tokens, tokens of their images.
        duplicates: Ids of rows that ask what another row asks, each with the id of the first such row.
        duplicate_count: The number of such rows; ``duplicates`` names `NAMED` of them.
        odd: Rows that look wrong, although they can be read: the ids of the rows by what it is.
        samples: The first problems as the model sees them.
    """

    path: str
    format: str
    model: str
    broken: list[BadRow]
    columns: dict[str, str]
    unread: list[str]
    model_reads: int | None
    rows: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    categories: dict[str, int] = field(default_factory=dict)
    images: dict[int, int] = field(default_factory=dict)
    distinct_images: int = 0
    width: Spread | None = None
    height: Spread | None = None
    image_bytes: int = 0
    prompt_tokens: Spread | None = None
    image_tokens: Spread | None = None
    too_long: int = 0
    longest: list[dict[str, Any]] = field(default_factory=list)
    duplicates: list[tuple[str, str]] = field(default_factory=list)
    duplicate_count: int = 0
    odd: dict[str, list[str]] = field(default_factory=dict)
    samples: list[ShownRow] = field(default_factory=list)


Picture = tuple[bytes, int, Size]
"""A digest of an image's encoded bytes, their number, and the image's size."""


class _Model:
    """A model's tokenizer and image processor, and the tasks that ask it about rows; no weights."""

    def __init__(self, settings: PolicyConfig) -> None:
        with torch.device("meta"):
            self.loaded = load_structure(settings.model_copy(update={"device": "meta"}))
        # A prompt that is too long is counted, not refused.
        config = self.loaded.model.config.get_text_config()
        self.reads: int | None = getattr(config, "max_position_embeddings", None)
        config.max_position_embeddings = 2**62
        self._judged = 0
        self.encoder, math = Encoder(self.loaded, settings.pixel_cache_mb), Math()
        self.tasks: dict[str, RowTask] = {
            "question": math, "options": math, "box": Grounding(), "step": Mobile(),
            "conversation": Conversations(), "pair": Preferences(),
        }  # fmt: skip
        space = self.loaded.family.coordinate_space
        for task in self.tasks.values():
            task.set_coordinate_space(partial(space, self.loaded.model, self.loaded.image_processor))

    def read(self, row: Row) -> tuple[str, list[Picture], bytes, Prompt, list[str]]:
        """Return what is counted of a row.

        These are the kind of answer that it asks for, its images, a digest of the question and the images,
        the prompt, and why it looks wrong.

        Raises:
            DataError: The row cannot be used.
        """
        encoded = [ref.data() for ref in row["images"]]
        images = [decode_image(data) for data in encoded]
        for width, height in (image.size for image in images):
            w, h = row.get("screen") or (1, 1)
            if (width - height) * (w - h) < 0:
                raise DataError(f"its screenshot is {width} x {height}, its screen {w} x {h}: one is turned")
        pairs = zip(encoded, images, strict=True)
        pictures = [(_digest(data), len(data), image.size) for data, image in pairs]
        opened = row | {"images": [ImageRef(row["id"], image) for image in images]}
        kind, asked = kind_of(row), [row.get(name) for name in _ASKED]
        text = json.dumps(asked, sort_keys=True, default=str).encode()
        digest = _digest(b"".join([*(own for own, *_ in pictures), text]))
        return kind, pictures, digest, self._prompt(kind, opened), self._odd(kind, opened)

    def _odd(self, kind: str, row: Row) -> list[str]:
        """Return what looks wrong about a row, although it can be read."""
        found, answer = [], str(row.get("answer"))
        if any(clip_box(box, row["screen"]) != list(map(float, box)) for box in row.get("ui_boxes", ())):
            found.append(OUTSIDE)
        if kind == "question" and re.fullmatch("[A-H]", answer.strip("() ")):
            marks = (rf"\b{letter}\s*[.):：、]" for letter in "AB")
            found += [] if all(re.search(mark, row["question"]) for mark in marks) else [NO_OPTIONS]
        elif kind == "question" and len(answer.split()) > MANY_WORDS:
            found.append(PROSE)
        elif kind == "question" and self._judged < MOST_JUDGED:
            self._judged += 1
            problem = self.tasks[kind].ask(row, row["id"])
            given_back = parse_tagged(f"<answer>{answer}</answer>", ("answer",))
            try:
                found += [] if self.tasks[kind].judge(problem, given_back).correct else [UNREADABLE]
            except ConfigError:  # math-verify is not installed
                self._judged = MOST_JUDGED
        return found

    def _prompt(self, kind: str, row: Row) -> Prompt:
        """Return the prompt of a model; tools are left out where its chat template shows none."""
        if kind == "task":
            # Its environment, which is not here, has the tools.
            return self.encoder.prompt(Problem(row["id"], user_turn(row["instruction"], images=0)))
        problem = self.tasks[kind].ask(row, row["id"])
        try:
            return self.encoder.prompt(problem)
        except ConfigError:
            return self.encoder.prompt(replace(problem, tools=[]))

    def show(self, row: Row, prompt: Prompt) -> ShownRow:
        """Return a row as the model sees it."""
        text = self.loaded.tokenizer.decode(prompt.ids)
        placeholder = self.loaded.family.placeholder(self.loaded.model)
        if placeholder is not None:
            mark = self.loaded.tokenizer.convert_ids_to_tokens(placeholder)
            for image in prompt.images:
                text = text.replace(mark * image.placeholders, f"[{image.placeholders} image tokens]", 1)
        sizes = [image.size for image in prompt.pictures]
        target = row.get("action") or row.get("box") or row.get("answer") or row.get("task")
        return ShownRow(row["id"], text, sizes, len(prompt.ids), target)


MANY_WORDS, MOST_JUDGED = 12, 1000
NO_OPTIONS = "the answer is a letter, and neither the row nor its question has options"
PROSE = f"the answer has more than {MANY_WORDS} words, which have to be repeated one by one"
UNREADABLE = "the answer cannot be read: given back as it stands it would not be right"
OUTSIDE = "a box of `ui_boxes` reaches out of the screen"
REPEATED = "an earlier row has the same id"
"""Reasons why a row looks wrong. The answers of `MOST_JUDGED` rows are given back."""

_ASKED = (
    "question", "options", "goal", "step_instruction", "history", "instruction", "task", "seed", "messages",
    "prompt", "chosen", "rejected",
)  # fmt: skip
"""Fields that tell rows apart."""


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def kind_of(row: Row) -> str:
    """Return what a row asks for.

    It is a ``step``, a ``box``, ``options`` (one of several), a ``question``, a ``task`` for agents, a
    ``conversation`` to be imitated, or a ``pair`` of which one side is preferred.
    """
    fields = {
        "messages": "conversation", "instruction": "task", "chosen": "pair", "action": "step", "box": "box"
    }  # fmt: skip
    plain = "options" if row.get("options") else "question"
    return next((kind for field, kind in fields.items() if field in row), plain)


def check_rows(rows: Rows, settings: PolicyConfig, *, samples: int = 3) -> Checked:
    """Read every row with its images, and encode it as ``settings.path``'s model would be asked it.

    Args:
        rows: The rows, from `open_rows`; what it found broken is passed on.
        settings: The model, whose weights are not loaded, and the sizes of its images.
        samples: The number of problems to keep as the model sees them.
    """
    model, columns = _Model(settings), _columns(rows)
    found = Checked(str(rows.path), rows.format, settings.path, [*rows.bad], *columns, model.reads)
    kinds, categories, counts = Counter[str](), Counter[str](), Counter[int]()
    pictures, firsts = dict[bytes, tuple[int, Size]](), dict[bytes, str]()
    prompts: list[tuple[int, int, int, str]] = []
    for index in range(len(rows)):
        try:
            row = rows[index]
            kind, shown_images, asked, prompt, odd = model.read(row)
        except DataError as error:
            found.broken.append(BadRow.of(rows.place(index), error))
            continue
        id = row["id"]
        kinds[kind] += 1
        categories[row["category"] or "(none)"] += 1
        counts[len(shown_images)] += 1
        pictures |= {digest: (size, shape) for digest, size, shape in shown_images}
        prompts.append((len(prompt.ids), sum(image.placeholders for image in prompt.images), index, id))
        if (first := firsts.setdefault(asked, id)) != id:
            found.duplicates.append((id, first))
        for fault in [*odd, *([REPEATED] if index in rows.repeated else [])]:
            found.odd.setdefault(fault, []).append(id)
        if len(found.samples) < samples:
            found.samples.append(model.show(row, prompt))
    found.broken.sort(key=lambda bad: (bad.file, bad.line))
    found.rows, found.kinds, found.categories = len(prompts), dict(kinds), dict(categories.most_common())
    found.images, found.distinct_images = dict(sorted(counts.items())), len(pictures)
    found.width = Spread.of([width for _, (width, _) in pictures.values()])
    found.height = Spread.of([height for _, (_, height) in pictures.values()])
    found.image_bytes = sum(size for size, _ in pictures.values())
    found.prompt_tokens = Spread.of([tokens for tokens, *_ in prompts])
    found.image_tokens = Spread.of([tokens for _, tokens, *_ in prompts])
    found.too_long = sum(model.reads is not None and tokens >= model.reads for tokens, *_ in prompts)
    for tokens, own, index, id in sorted(prompts, key=lambda one: (-one[0], one[2]))[:NAMED]:
        place = str(rows.place(index))
        found.longest.append({"id": id, "place": place, "tokens": tokens, "image_tokens": own})
    found.duplicate_count = len(found.duplicates)
    del found.duplicates[NAMED:]
    return found


def _columns(rows: Rows, most: int = 50) -> tuple[dict[str, str], list[str]]:
    """Return which fields the first rows have from columns of other names, and which columns are not read."""
    taken: dict[str, str] = {}
    unread: dict[str, None] = {}
    read = {*GROUPINGS, "metadata", "categories"}
    for index in range(min(len(rows), most)):
        with suppress(DataError):
            row, record = rows[index], rows.record(index)
            read |= rows.columns_read(index)
            unread |= dict.fromkeys(record)
            for field in (field for field in COLUMNS if row.get(field)):
                names = [name for name in COLUMNS[field] if name in read and filled(record.get(name))]
                taken |= {field: names[0]} if names and names[0] != field and field not in taken else {}
    return taken, [name for name in unread if name not in read]


MOST_BROKEN = 20
"""How many broken rows are named to people."""


def summary(c: Checked) -> list[str]:
    """Return the lines that people read."""
    lines = [f"{c.path}: {c.format}, {_many(c.rows, 'usable row')}, {len(c.broken)} broken"]
    if c.columns or c.unread:
        named = [f"{field} from {name}" for field, name in c.columns.items()]
        unread = [f"not read: {', '.join(c.unread)}"] if c.unread else []
        lines.append(f"columns: {'; '.join([', '.join(named) or 'under our own names', *unread])}")
    if c.rows:
        lines += [f"asks for: {_counted(c.kinds)}", f"categories: {_counted(c.categories, 8)}"]
        if c.distinct_images:
            lines += [
                f"images: {_many(c.distinct_images, 'image')}, {c.image_bytes / 2**20:.1f} MiB, "
                f"width {c.width}, height {c.height}",
                f"images per row: {_counted(c.images)}",
            ]
        tokens = f"{c.prompt_tokens}, of which for images {c.image_tokens}"
        lines.append(f"tokens per problem ({c.model}): {tokens}")
        if c.too_long:
            lines.append(f"longer than the {c.model_reads} that it reads: {c.too_long:,}")
        lines.append("longest prompts:")
    for row in c.longest:
        lines.append(f"  {row['id']} ({row['place']}): {row['tokens']}, for images {row['image_tokens']}")
    if c.duplicates:
        lines.append(f"duplicates: {_many(c.duplicate_count, 'row')}")
        lines += [f"  {again} asks what {first} does" for again, first in c.duplicates]
        lines += ["  ..."] if c.duplicate_count > len(c.duplicates) else []
    lines += ["looks wrong:"] if c.odd else []
    for odd, ids in c.odd.items():
        some = ", ".join([*ids[:NAMED], *(["..."] if len(ids) > NAMED else [])])
        lines.append(f"  {_many(len(ids), 'row')}: {odd} ({some})")
    if c.broken:
        particular = re.compile(r"'[^']*'|\"[^\"]*\"|\[[^]]*\]|\S*/\S*|\d[\d.,]*")
        reasons = Counter(particular.sub("…", bad.reason.partition("\n")[0]) for bad in c.broken)
        if len(reasons) < len(c.broken):
            counted = reasons.most_common()
            lines += ["left out:", *(f"  {_many(count, 'row')}: {why}" for why, count in counted)]
        more = len(c.broken) - MOST_BROKEN
        lines += ["broken rows:", *(f"  {bad}" for bad in c.broken[:MOST_BROKEN])]
        lines += [f"  and {more} more"] if more > 0 else []
    for sample in c.samples:
        sizes = ", ".join(f"{w} x {h}" for w, h in sample.images) or "no image"
        lines += ["", f"--- {sample.id}: {sample.tokens} tokens; {sizes}; target {shown(sample.target, 200)}"]
        lines += [f"| {line}" for line in sample.text.splitlines()]
    return lines


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _counted(counts: Mapping[Any, int], most: int = 20) -> str:
    parts = [f"{name} {count:,}" for name, count in counts.items()]
    more = len(parts) - most
    return ", ".join(parts[:most]) + (f" and {more} more" if more > 0 else "")
