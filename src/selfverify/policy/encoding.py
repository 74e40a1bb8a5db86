"""Turns problems into prompts: token ids, positions and preprocessed images.

A tokenizer knows special tokens by their text. Words that spell one (``<|im_end|>`` in a question, the mark
of an image on a screen) would end a turn or stand for an image. A text that is cut inside of such a spelling
and tokenised piece by piece has none of them, and says the same (`SpecialTokens`).
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.images import is_rgb, to_rgb
from selfverify.core.problem import Problem
from selfverify.core.tags import SCORE_TAG
from selfverify.policy.chat import (
    TooLongError,
    chat_text,
    check_beginnings,
    check_template,
    checked_messages,
    content_texts,
    find_opening,
    has_too_many_characters,
    with_objects,
)
from selfverify.policy.families import ImageInput, lengthened
from selfverify.policy.features import MISFIT, ByteCache
from selfverify.policy.loading import Loaded
from selfverify.policy.packing import Continuation

logger = logging.getLogger(__name__)

_PIECES = 1024
"""Pieces of a text that are tokenised at a time: spelt out, special tokens take many tokens each."""

_ASKED_FOR = [f"<{slash}{tag}>" for tag in ("think", "answer", SCORE_TAG) for slash in ("", "/")]
"""Marks that requests of this library name (`core.tags`): where it is a token, it is the one to be
written."""
_CALLS = ["<tool_call>", "</tool_call>"]
"""Marks that this library writes around calls (`tasks.tool_calls`), and that instructions of tasks name."""


@dataclass(slots=True)
class Prompt:
    """An encoded prompt.

    Args:
        problem_id: The id that errors name.
        ids: ``[P]`` token ids, with image placeholders expanded.
        positions: ``[axes, P]`` position ids.
        images: The preprocessed images, in order.
        next_position: The position of the token that follows.
        pictures: The images themselves, for engines that encode them on their own.
        begun: Whether the policy's message is begun. Where the environment speaks first it is not.
    """

    problem_id: str
    ids: Tensor
    positions: Tensor
    images: list[ImageInput] = field(default_factory=list)
    next_position: int = 0
    pictures: list[Image] = field(default_factory=list)
    begun: bool = True


class SpecialTokens:
    """The special tokens of a model, the marks around its images, and other markup that is one token.

    In words that an environment shows nothing of it means anything. In a problem's messages no special token
    and no mark does; markup that a tokenizer does not call special, such as ``<tool_call>``, means nothing in
    what users and tools say, and what it always means in what the system and the assistant say: there tasks
    write instructions and turns. The tags that this library's requests name mean what they always mean.

    Attributes:
        slot: The text that a chat template writes for an image; None where the model reads text only.
        control: The ids of special tokens and marks.
        meant: The same with those of markup.
    """

    def __init__(self, loaded: Loaded) -> None:
        family, model, tokenizer = loaded.family, loaded.model, loaded.tokenizer
        self.slot = family.slot(model, tokenizer) if family.placeholder(model) is not None else None
        marks = {mark for mark in (*family.marks(model, tokenizer), self.slot) if mark}
        added = tokenizer.added_tokens_decoder.items()
        special = {number for number, token in added if token.special}
        markup = {number for number, token in added if not token.special and _is_markup(token.content)}
        name = tokenizer.convert_ids_to_tokens
        control = marks | {name(number) for number in special}
        literals = control | {name(number) for number in markup}
        # The token for unknown characters means nothing itself.
        unknown = {tokenizer.unk_token_id}
        self.meant = (special | markup) - unknown
        self.control = (special | {*map(tokenizer.convert_tokens_to_ids, marks)}) - unknown
        self._literal = _any_of(literals)
        self._control_literal = _any_of(control)
        self._of_others = _any_of(literals - {*_ASKED_FOR})
        self._of_authors = _any_of(control - {*_ASKED_FOR, *_CALLS})
        self._warned: set[str] = set()

    def count(self, text: str) -> int:
        """How many special tokens and marks a text spells."""
        return sum(1 for _ in self._control_literal.finditer(text))

    def filled(self, text: str, images: Iterator[str]) -> str:
        """A text with the next of ``images`` in the place of each image's slot."""
        first, *others = text.split(self.slot) if self.slot else [text]
        return first + "".join(next(images) + other for other in others)

    def cuts(self, whole: str, ranges: Sequence[tuple[int, int]]) -> list[int]:
        """Places inside everything in ``ranges`` that reads like markup, so that none is it."""
        return sorted({cut for begin, end in ranges for cut, _ in _cuts(self._literal, whole, begin, end)})

    def pieces(self, words: str, role: str, named: str) -> list[str]:
        """The words that somebody says, cut where they would mean something; see the class.

        Args:
            words: The words.
            role: The role of the speaker.
            named: The name in a warning: a problem, or a part of one.
        """
        found = dict(_cuts(self._pattern(role), words, 0, len(words)))
        self._warn(found.values(), role, named)
        return _split(words, found)

    def marked(self, problem: Problem) -> tuple[Problem, str]:
        """Mark the cuts in a problem's messages and tools.

        Returns:
            The problem with a mark at each cut, itself where there is none; and the mark, which stands
            nowhere else in it. The text that a chat template writes of it is to be cut there.

        Raises:
            DataError: A message is of no form that is known.
        """
        whole, named = repr((problem.messages, problem.tools)), f"problem {problem.id}"
        mark = next(mark for n in itertools.count() if (mark := f"(cut-{n})") not in whole)
        messages = [self._marked_message(message, mark, named) for message in checked_messages(problem)]
        tools = self._marked(problem.tools, "tools", mark, named)
        if messages == problem.messages and tools == problem.tools:
            return problem, mark
        return replace(problem, messages=messages, tools=tools), mark

    def _marked_message(self, message: dict[str, Any], mark: str, named: str) -> dict[str, Any]:
        role, content = message["role"], message.get("content")
        rest = {key: value for key, value in message.items() if key not in ("role", "content")}
        found = {"role": role, **self._marked(rest, role, mark, named)}
        if not isinstance(content, list):
            said = {"content": self._marked(content, role, mark, named)} if "content" in message else {}
            return {**message, **found, **said}
        # Templates put nothing between two texts, so that both may spell a token together.
        texts = [*content_texts(content)]
        spelt = dict(_cuts(self._pattern(role), "".join(texts), 0, sum(map(len, texts))))
        self._warn(spelt.values(), role, named)
        cuts, parts, start = sorted(spelt), [], 0
        for part in content:
            if part["type"] == "text":
                end = start + len(part["text"])
                own = cuts[bisect_right(cuts, start) : bisect_right(cuts, end)]
                part = {**part, "text": mark.join(_split(part["text"], [cut - start for cut in own]))}
                start = end
            parts.append(part)
        return {**message, **found, "content": parts}

    def _marked(self, value: Any, role: str, mark: str, named: str) -> Any:
        """A value of a message with ``mark`` at the cuts of all texts in it."""
        if isinstance(value, str):
            return mark.join(self.pieces(value, role, named))
        if isinstance(value, dict):
            return {
                self._marked(key, role, mark, named): self._marked(inner, role, mark, named)
                for key, inner in value.items()
            }
        if isinstance(value, list):
            return [self._marked(inner, role, mark, named) for inner in value]
        return value

    def _pattern(self, role: str) -> re.Pattern[str]:
        return self._of_others if role in ("user", "tool") else self._of_authors

    def _warn(self, spelt: Iterable[str], role: str, named: str) -> None:
        """Say once of each token that somebody's words are not read as it."""
        for token in {*spelt} - self._warned:
            self._warned.add(token)
            logger.warning(
                "%s: words (%s) spell %s, which is a token of the model; they are read as the words that "
                "they are, here and everywhere else", named, role, token,
            )  # fmt: skip


def _cuts(literal: re.Pattern[str], whole: str, begin: int, end: int) -> Iterator[tuple[int, str]]:
    """Yield a place inside each match that begins in a range, also in matches that overlap, and the match."""
    found = literal.search(whole, begin)
    while found is not None and found.start() < end:
        yield found.start() + 1, found.group()
        found = literal.search(whole, found.start() + 1)


def _split(text: str, cuts: Iterable[int]) -> list[str]:
    return [text[a:b] for a, b in itertools.pairwise([0, *sorted(cuts), len(text)])]


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """A pattern of the longest of ``texts`` at a place; it tries those that begin alike together.

    Tokenizers have thousands of special tokens that begin with ``<``: one after the other they would be tried
    at each such sign.
    """
    tree: dict[str, Any] = {}
    for text in filter(None, texts):
        node = tree
        for sign in text:
            node = node.setdefault(sign, {})
        node[""] = {}

    def pattern(node: dict[str, Any]) -> str:
        inner = [re.escape(sign) + pattern(node[sign]) for sign in sorted(node) if sign]
        if not inner:
            return ""
        both = inner[0] if len(inner) == 1 else f"(?:{'|'.join(inner)})"
        return f"(?:{both})?" if "" in node else both

    return re.compile(pattern(tree) or r"(?!)")


def _is_markup(text: str) -> bool:
    """Whether an added token that is not called special reads like markup, such as ``<tool_call>``."""
    return len(text) > 2 and text[0] in "<[" and text[-1] in ">]"


class Encoder:
    """Turns problems into prompts. The last ``cache_mb`` MiB of preprocessed images are kept."""

    def __init__(self, loaded: Loaded, cache_mb: float) -> None:
        check_template(loaded)
        self.loaded = loaded
        self._images: ByteCache[ImageInput] = ByteCache(
            cache_mb,
            lambda image: sum(t.nbytes for t in image.tensors.values() if isinstance(t, Tensor)),
        )

    @cached_property
    def special(self) -> SpecialTokens:
        """The tokens that nothing in words may become."""
        return SpecialTokens(self.loaded)

    def image(self, image: Image, problem_id: str, several: bool = False) -> ImageInput:
        """Preprocess one image, or return it from the cache.

        Args:
            image: An image of any mode.
            problem_id: The id that errors name.
            several: Whether the image's prompt has other images.

        Raises:
            DataError: The image cannot be read, or the processor refuses it.
        """
        family, model, processor = self.loaded.family, self.loaded.model, self.loaded.image_processor
        rgb = self.rgb(image, problem_id)
        several = several and family.splits_single_images
        digest = hashlib.blake2b(repr((rgb.size, several)).encode(), digest_size=16)
        digest.update(rgb.tobytes())
        key = digest.hexdigest()
        if (found := self._images.get(key)) is None:
            try:
                tensors = family.preprocess(processor, rgb, several)
                text = family.text(model, self.loaded.tokenizer, processor, tensors)
            except (ValueError, RuntimeError) as error:
                raise DataError(f"problem {problem_id}: an image of {rgb.size}: {error}") from error
            found = ImageInput(key, tensors, text, text.count(self._placeholder()))
            self._images.put(key, found)
        return found

    def rgb(self, image: Image, problem_id: str) -> Image:
        """An image of any mode in RGB; itself where it is in memory like that.

        Raises:
            DataError: The image cannot be read, or has no pixels.
        """
        try:
            rgb = image if is_rgb(image) else to_rgb(image)
        except Exception as error:
            # PIL raises many types for broken files; whichever it is, the problem must be named.
            raise DataError(f"problem {problem_id}: an image cannot be read ({error})") from error
        if 0 in rgb.size:
            raise DataError(f"problem {problem_id}: an image of {rgb.size} has no pixels")
        return rgb

    def _placeholder(self) -> str:
        token: str = self.loaded.tokenizer.convert_ids_to_tokens(
            self.loaded.family.placeholder(self.loaded.model)
        )
        return token

    def prompt(self, problem: Problem) -> Prompt:
        """Encode one problem's messages up to the point where the policy begins to write.

        Raises:
            ConfigError: The model's chat template cannot show the problem's tools, or an environment that
                speaks first.
            DataError: The chat template refuses the messages or leaves words out, placeholders and images do
                not match, an image cannot be read, or words cannot be told from special tokens.
            TooLongError: The prompt is longer than the model's context.
        """
        family, model = self.loaded.family, self.loaded.model
        characters, limit = _size([problem.messages, problem.tools]), longest_row(model)
        if has_too_many_characters(characters, limit):  # none is written that no model could read
            raise TooLongError(
                f"problem {problem.id}: its messages have {characters} characters and the model reads "
                f"{limit} tokens; use less text"
            )
        if not family.shares_prompts:
            return self._whole_prompt(problem)
        reads_images = family.placeholder(model) is not None
        if problem.images and not reads_images:
            raise DataError(f"problem {problem.id}: it has images but the model reads text only")
        pieces = self._pieces(problem)
        images = [self.image(image, problem.id, len(problem.images) > 1) for image in problem.images]
        tokens = self._tokens(pieces, f"problem {problem.id}: its messages")
        if reads_images:
            shown = self._expand(pieces, images, problem.id)
            tokens = self._ids(shown) if images else tokens
        ids = torch.tensor(tokens, dtype=torch.long)
        self._refuse_long(problem, len(ids), sum(image.placeholders for image in images))
        try:
            positions = family.positions(model, ids, images)
        except RuntimeError as error:
            raise DataError(f"problem {problem.id}: {MISFIT} ({error})") from error
        following = int(positions.max()) + 1 if len(ids) else 0
        begun = not problem.environment_begins
        return Prompt(problem.id, ids, positions, images, following, problem.images, begun)

    def words(self, words: str, where: str) -> list[int]:
        """Return the assistant's words as tokens, of which none is a special one; see `SpecialTokens`.

        Args:
            words: The words.
            where: The name in errors.

        Raises:
            DataError: The words contain an image token, or cannot be told from special tokens.
            TooLongError: They alone are longer than the model's context.
        """
        limit = longest_row(self.loaded.model)
        if has_too_many_characters(len(words), limit):
            raise TooLongError(f"{where} has {len(words)} characters and the model reads {limit} tokens")
        check_beginnings(self.loaded.tokenizer, [words], limit, f"{where}: the text's")
        self._refuse_image_tokens([words], where)
        return self._tokens(self.special.pieces(words, "assistant", where), where)

    def _pieces(self, problem: Problem) -> list[str]:
        """Tokens of the text that the chat template writes before the policy, or the environment, begins.

        It is in one piece unless its words spell special tokens, in which it is cut.
        """
        problem = with_objects(problem)  # before anything is cut, as JSON may spell words otherwise
        marked, mark = self.special.marked(problem)
        said = [text for message in problem.messages for text in content_texts(message.get("content"))]
        self._refuse_image_tokens(said, f"problem {problem.id}")
        if problem.environment_begins:
            text = find_opening(self.loaded, marked).prompt
        else:
            text = chat_text(self.loaded, marked)
        pieces = text.split(mark) if marked is not problem else [text]
        whose = f"problem {problem.id}: its prompt's"
        check_beginnings(self.loaded.tokenizer, pieces, longest_row(self.loaded.model), whose)
        return pieces

    def _tokens(self, pieces: Sequence[str], where: str) -> list[int]:
        """The tokens of a text that has been cut.

        Raises:
            DataError: The tokenizer reads special tokens where the text spells none, as normalisers make it.
            TooLongError: The text takes more tokens than the model reads.
        """
        ids, limit = list[int](), longest_row(self.loaded.model)
        for first in range(0, len(pieces), _PIECES):
            if limit is not None and len(ids) > limit:
                raise TooLongError(f"{where} take more than {limit} tokens, which is what the model reads")
            ids += self._ids(pieces[first : first + _PIECES])
        if sum(i in self.special.control for i in ids) > sum(map(self.special.count, pieces)):
            raise DataError(f"{where} cannot be written without special tokens of the model")
        return ids

    def _ids(self, pieces: Sequence[str]) -> list[int]:
        # The template has written all special tokens already.
        rows = self.loaded.tokenizer([*pieces], add_special_tokens=False)["input_ids"]
        return [i for row in rows for i in row]

    def extended(self, prompt: Prompt, piece: Continuation) -> Prompt:
        """``prompt`` with ``piece`` behind it; an environment that speaks first has spoken with it.

        Raises:
            ConfigError: The piece shows an image to a model of an unknown family.
        """
        family, model = self.loaded.family, self.loaded.model
        more = torch.tensor(list(piece.tokens), dtype=torch.long)
        ids = torch.cat([prompt.ids, more])
        images = [*prompt.images, *piece.images]
        if not family.shares_prompts:
            if piece.images:
                raise ConfigError(no_image_here(self.loaded, prompt.problem_id))
            images = [
                replace(image, tensors=lengthened(model, image.tensors, len(prompt.ids), len(ids)))
                for image in images
            ]
        if piece.images:
            positions = family.positions(model, ids, images)
            following = int(positions.max()) + 1
        else:
            places = prompt.next_position + torch.arange(len(more))
            positions = torch.cat([prompt.positions, places.expand(len(prompt.positions), -1)], dim=1)
            following = prompt.next_position + len(more)
        return Prompt(
            prompt.problem_id, ids, positions, images, following, [*prompt.pictures, *piece.pictures]
        )

    def _whole_prompt(self, problem: Problem) -> Prompt:
        """Return the prompt that the model's own processor makes, for `families.Unknown`."""
        processor = self.loaded.image_processor
        # It tokenises a text as a whole, so that nothing can be cut in it.
        pieces = self._pieces(problem)
        text = "".join(pieces)
        spelt = self.special.count(text) - sum(map(self.special.count, pieces))
        if spelt:
            raise DataError(
                f"problem {problem.id}: its messages spell special tokens of the model {spelt} times, which "
                "its processor would read as such; take them out"
            )
        try:
            shown = {"images": [to_rgb(image) for image in problem.images]} if problem.images else {}
            made = dict(processor(text=[text], return_tensors="pt", add_special_tokens=False, **shown))
        except Exception as error:
            # Processors and PIL raise many types; whichever it is, the problem must be named.
            raise DataError(f"problem {problem.id}: its processor refuses it ({error})") from error
        ids = made.pop("input_ids")[0]
        self._refuse_long(
            problem, len(ids), ids.tolist().count(self.loaded.family.placeholder(self.loaded.model))
        )
        made.pop("attention_mask", None)
        whole = [ImageInput("", made, "", 0)] if problem.images else []
        begun = not problem.environment_begins
        return Prompt(problem.id, ids, torch.arange(len(ids))[None], whole, len(ids), begun=begun)

    def _refuse_long(self, problem: Problem, tokens: int, of_images: int) -> None:
        limit = longest_row(self.loaded.model)
        if limit is not None and tokens >= limit:
            raise TooLongError(
                f"problem {problem.id}: its prompt takes {tokens} tokens, {of_images} of them for images, "
                f"and the model reads {limit}; use smaller images (Qwen: policy.max_pixels) or less text"
            )

    def _refuse_image_tokens(self, texts: Iterable[str], where: str) -> None:
        # It stands for an image, which would then be missing or in another place.
        literals = {self._placeholder(), self.special.slot} if self.special.slot else ()
        for text in texts:
            for literal in literals:
                if literal in text:
                    raise DataError(f"{where}: a text contains the image token {literal}")

    def _expand(self, pieces: Sequence[str], images: list[ImageInput], problem_id: str) -> list[str]:
        """The pieces of a text with images in place of their slots."""
        slots = sum(piece.count(self.special.slot) for piece in pieces if self.special.slot)
        if slots != len(images):
            raise DataError(
                f"problem {problem_id}: {slots} image placeholders in the messages but "
                f"{len(images)} images; each image needs one {{'type': 'image'}} part"
            )
        left = iter([image.text for image in images])
        return [self.special.filled(piece, left) for piece in pieces]


def _size(value: Any) -> int:
    """The characters of all texts in a value, and one for each value: that takes work, too."""
    if isinstance(value, str):
        return 1 + len(value)
    if isinstance(value, dict):
        return 1 + sum(_size(key) + _size(inner) for key, inner in value.items())
    return 1 + (sum(map(_size, value)) if isinstance(value, list | tuple) else 0)


def no_image_here(loaded: Loaded, named: str) -> str:
    """Why a model of an unknown family is shown no image behind its prompt."""
    return (
        f"problem {named}: models of type {loaded.model.config.model_type!r} are shown images in the prompt "
        "only, and not in the middle of a conversation, since where they put them is not known here; take a "
        "family of docs/models.md"
    )


def longest_row(model: Any) -> int | None:
    """Return the most tokens that ``model`` reads; None where its settings do not say.

    Some rotary positions have other frequencies once the longest row of a pass is longer than the model was
    first trained on. The output of a row would depend on the rows beside it, and on whether it is read at
    once or grows, so that such a model reads no more.
    """
    c = model.config.get_text_config()
    longest: int | None = getattr(c, "max_position_embeddings", None)
    rope = getattr(c, "rope_parameters", None) or {}
    kinds = [kind for kind in (rope, *rope.values()) if isinstance(kind, dict)]  # one for each kind of layer
    first = [
        kind.get("original_max_position_embeddings", longest) if kind["rope_type"] == "longrope" else longest
        for kind in kinds
        if kind.get("rope_type") in ("dynamic", "longrope")
    ]
    if first:
        return min(limit for limit in first if limit is not None)
    # Other scaled rotary positions reach further than max_position_embeddings says.
    return None if "factor" in str(rope) else longest
