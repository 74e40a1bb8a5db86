"""One pass over a data file: what is in it, what a model will see of it, and what is broken."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image

from selfverify.data import BadRow, Rows
from selfverify.data.fields import Row, shown
from selfverify.data.images import decode_image
from selfverify.errors import DataError
from selfverify.policy.config import PolicyConfig
from selfverify.policy.encoding import Encoder, Prompt
from selfverify.policy.loading import Loaded, load_structure
from selfverify.rollouts.types import Problem
from selfverify.tasks.base import tell_space
from selfverify.tasks.canvas import Split
from selfverify.tasks.grounding import Grounding
from selfverify.tasks.math import Math
from selfverify.tasks.mobile import Mobile
from selfverify.tasks.rows import Rows as TaskRows

NAMED = 5
"""Longest prompts and duplicates that are named."""


@dataclass(slots=True)
class Spread:
    """Of some figure: smallest, middle and largest."""

    min: float
    median: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None of nothing."""
        if not values:
            return None
        return cls(min(values), float(np.median(values)), max(values))


@dataclass(slots=True)
class Sample:
    """A problem as the model sees it. In ``text`` a run of placeholders stands as one, with its length."""

    id: str
    text: str
    images: list[tuple[int, int]]
    tokens: int
    target: Any


@dataclass(slots=True)
class Checked:
    """What a data file holds.

    Args:
        rows: That can be used, images included.
        broken: Those that cannot.
        kinds: Rows by what they ask for: ``question``, ``options``, ``box``, ``step``.
        categories: Rows by category.
        images: Images of a row, and how many rows have so many.
        distinct_images: By content.
        width, height: Of images, in pixels.
        image_bytes: Of distinct images, encoded.
        prompt_tokens: Per problem, images included; `model`'s.
        image_tokens: Per problem.
        model_reads: The longest prompt that the model reads, where its config says.
        too_long: Problems that are longer.
        longest: Longest prompts: id, place, tokens, of which for images.
        duplicates: Ids of rows that ask what another one asks, with that one's id.
        duplicate_count: How many there are.
    """

    path: str
    format: str
    model: str
    rows: int = 0
    broken: list[BadRow] = field(default_factory=list)
    kinds: dict[str, int] = field(default_factory=dict)
    categories: dict[str, int] = field(default_factory=dict)
    images: dict[int, int] = field(default_factory=dict)
    distinct_images: int = 0
    width: Spread | None = None
    height: Spread | None = None
    image_bytes: int = 0
    prompt_tokens: Spread | None = None
    image_tokens: Spread | None = None
    model_reads: int | None = None
    too_long: int = 0
    longest: list[dict[str, Any]] = field(default_factory=list)
    duplicates: list[tuple[str, str]] = field(default_factory=list)
    duplicate_count: int = 0
    samples: list[Sample] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


def kind_of(row: Row) -> str:
    """What a row asks for."""
    if "action" in row:
        return "step"
    if "box" in row:
        return "box"
    return "options" if row.get("options") else "question"


def target_of(row: Row) -> Any:
    """What a row's answer is compared with."""
    return row.get("action") or row.get("box") or row.get("answer")


class _Asked:
    """Problems of single rows, as the task that takes such rows asks them."""

    def __init__(self, loaded: Loaded) -> None:
        self._row: list[Row] = [{}]
        rows: dict[Split, TaskRows] = {"test": self._row}
        math = Math(rows=rows)
        self._tasks: dict[str, Any] = {
            "question": math,
            "options": math,
            "box": Grounding(rows=rows),
            "step": Mobile(rows=rows),
        }
        for task in self._tasks.values():
            tell_space(
                task,
                lambda size: loaded.family.coordinate_space(loaded.model, loaded.image_processor, size),
            )

    def __call__(self, row: Row, images: list[Image.Image]) -> Problem:
        self._row[0] = {**row, "images": images}
        problem: Problem = self._tasks[kind_of(row)].problem("test", 0, 0)
        return problem


def check_rows(
    rows: Rows,
    settings: PolicyConfig,
    *,
    samples: int = 2,
    on_row: Callable[[int], None] = lambda done: None,
) -> Checked:
    """Read every row with its images, and encode it as ``settings.path``'s model would be asked it.

    Args:
        rows: From `open_rows`; what it found broken is passed on.
        settings: The model, without whose weights this works, and the sizes of its images.
        samples: Problems that are kept as the model sees them.
        on_row: Called with the number of rows done.
    """
    with torch.device("meta"):
        loaded = load_structure(settings.model_copy(update={"device": "meta"}))
    # A prompt that is too long is counted, not refused.
    config = loaded.model.config.get_text_config()
    reads, config.max_position_embeddings = getattr(config, "max_position_embeddings", None), 2**62
    encoder, problem_of = Encoder(loaded, settings.pixel_cache_mb), _Asked(loaded)
    found = Checked(str(rows.path), rows.format, settings.path, broken=list(rows.bad))
    kinds: Counter[str] = Counter()
    categories: Counter[str] = Counter()
    counts: Counter[int] = Counter()
    seen: dict[bytes, str] = {}
    pictures: dict[bytes, tuple[int, tuple[int, int]]] = {}
    lengths: list[tuple[int, int, int]] = []
    for index in range(len(rows)):
        on_row(index)
        try:
            row = rows[index]
            images = _open(row, pictures)
            digest = _digest(row, images)
            prompt = encoder.prompt(problem_of(row, [image for _, image in images]))
        except DataError as error:
            found.broken.append(_broken(rows, index, error))
            continue
        kinds[kind_of(row)] += 1
        categories[row["category"] or "(none)"] += 1
        counts[len(images)] += 1
        lengths.append((len(prompt.ids), sum(i.placeholders for i in prompt.images), index))
        if digest in seen:
            found.duplicate_count += 1
            if len(found.duplicates) < NAMED:
                found.duplicates.append((row["id"], seen[digest]))
        seen.setdefault(digest, row["id"])
        if len(found.samples) < samples:
            found.samples.append(_sample(row, prompt, encoder))
    found.broken.sort(key=lambda bad: (bad.file, bad.line))
    found.rows, found.model_reads = len(lengths), reads
    found.too_long = sum(reads is not None and tokens >= reads for tokens, _, _ in lengths)
    found.kinds, found.images = dict(kinds), dict(sorted(counts.items()))
    found.categories = dict(categories.most_common())
    found.distinct_images = len(pictures)
    found.image_bytes = sum(size for size, _ in pictures.values())
    found.width = Spread.of([size[0] for _, size in pictures.values()])
    found.height = Spread.of([size[1] for _, size in pictures.values()])
    found.prompt_tokens = Spread.of([tokens for tokens, _, _ in lengths])
    found.image_tokens = Spread.of([of_images for _, of_images, _ in lengths])
    for tokens, of_images, index in sorted(lengths, key=lambda entry: (-entry[0], entry[2]))[:NAMED]:
        name = {"id": rows[index]["id"], "place": str(rows.place(index))}
        found.longest.append({**name, "tokens": tokens, "image_tokens": of_images})
    return found


def _open(row: Row, known: dict[bytes, tuple[int, tuple[int, int]]]) -> list[tuple[bytes, Image.Image]]:
    """A row's images with digests of their bytes; remembers how large each is."""
    opened = []
    for ref in row["images"]:
        encoded = ref.data()
        image = decode_image(encoded)
        if "size" in row and image.size != row["size"]:
            raise DataError(
                f"its image is {image.size[0]} x {image.size[1]}, the file says "
                f"{row['size'][0]} x {row['size'][1]}: its box is not where it says"
            )
        if "screen" in row and _turned(image.size, row["screen"]):
            raise DataError(
                f"its screenshot is {image.size[0]} x {image.size[1]}, its screen "
                f"{row['screen'][0]} x {row['screen'][1]}: one of them is turned"
            )
        digest = hashlib.blake2b(encoded, digest_size=16).digest()
        known[digest] = len(encoded), image.size
        opened.append((digest, image))
    return opened


def _turned(image: tuple[int, int], screen: tuple[int, int]) -> bool:
    return (image[0] - image[1]) * (screen[0] - screen[1]) < 0


def _digest(row: Row, images: list[tuple[bytes, Image.Image]]) -> bytes:
    asked = [row.get(name) for name in ("question", "options", "goal", "step_instruction", "history")]
    text = json.dumps(asked, sort_keys=True, default=str).encode()
    return hashlib.blake2b(b"".join([*(digest for digest, _ in images), text]), digest_size=16).digest()


def _broken(rows: Rows, index: int, error: DataError) -> BadRow:
    place = rows.place(index)
    reason = str(error).removeprefix(f"{place}: ")
    return BadRow(str(place.file), place.number, reason, str(place))


def _sample(row: Row, prompt: Prompt, encoder: Encoder) -> Sample:
    tokenizer, family = encoder.loaded.tokenizer, encoder.loaded.family
    text = tokenizer.decode(prompt.ids)
    placeholder = family.placeholder(encoder.loaded.model)
    if placeholder is not None:
        mark = tokenizer.convert_ids_to_tokens(placeholder)
        for image in prompt.images:
            text = text.replace(mark * image.placeholders, f"[{image.placeholders} image tokens]", 1)
    sizes = [image.size for image in prompt.pictures]
    return Sample(row["id"], text, sizes, len(prompt.ids), target_of(row))


def summary(checked: Checked, broken: int = 20) -> list[str]:
    """A summary for people.

    Args:
        checked: What was found.
        broken: Broken rows that are named at most.
    """
    c = checked
    lines = [f"{c.path}: {c.format}, {_many(c.rows, 'usable row')}, {len(c.broken)} broken"]
    lines += [f"asks for: {_counted(c.kinds)}", f"categories: {_counted(c.categories, 8)}"] if c.rows else []
    if c.distinct_images:
        assert c.width is not None and c.height is not None
        lines += [
            f"images: {_many(c.distinct_images, 'image')}, {c.image_bytes / 2**20:.1f} MiB, "
            f"width {_spread(c.width)}, height {_spread(c.height)}",
            f"images per row: {_counted({str(k): v for k, v in c.images.items()})}",
        ]
    if c.prompt_tokens is not None and c.image_tokens is not None:
        lines += [
            f"tokens per problem ({c.model}): {_spread(c.prompt_tokens)}, of which for images "
            f"{_spread(c.image_tokens)}",
            *([f"longer than the {c.model_reads} that it reads: {c.too_long:,}"] if c.too_long else []),
            "longest prompts:",
            *(
                f"  {entry['id']} ({entry['place']}): {entry['tokens']}, for images {entry['image_tokens']}"
                for entry in c.longest
            ),
        ]
    if c.duplicate_count:
        lines += [
            f"duplicates: {_many(c.duplicate_count, 'row')}",
            *(f"  {again} asks what {first} does" for again, first in c.duplicates),
        ]
        lines += ["  ..."] if c.duplicate_count > len(c.duplicates) else []
    if c.broken:
        lines += ["broken rows:", *(f"  {bad}" for bad in c.broken[:broken])]
        more = len(c.broken) - broken
        lines += [f"  and {more} more; --json has them all"] if more > 0 else []
    for sample in c.samples:
        sizes = ", ".join(f"{w} x {h}" for w, h in sample.images) or "no image"
        lines += ["", f"--- {sample.id}: {sample.tokens} tokens; {sizes}; target {shown(sample.target, 200)}"]
        lines += [f"| {line}" for line in sample.text.splitlines()]
    return lines


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _counted(counts: dict[str, int], most: int = 20) -> str:
    parts = [f"{name} {count:,}" for name, count in counts.items()]
    more = len(parts) - most
    return ", ".join(parts[:most]) + (f" and {more} more" if more > 0 else "")


def _spread(values: Spread) -> str:
    if values.min == values.max:
        return f"{values.min:,.0f}"
    return f"{values.min:,.0f} to {values.max:,.0f} (median {values.median:,.0f})"
