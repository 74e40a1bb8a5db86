"""Conversations of files, as demonstrations (`conversations`) and as preferences among them (`pairs`).

The replies of a conversation are given again, to any words (`Replayed`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image
from pydantic import Field, model_validator

from selfverify.core.config import RolloutLimits
from selfverify.core.episode import Call, Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.errors import DataError
from selfverify.core.problem import Problem, Split, content_parts, joined_parts
from selfverify.core.tags import Tagged
from selfverify.data.conversations import convert_conversation
from selfverify.data.fields import Row
from selfverify.data.images import ImageRef
from selfverify.data.preferences import SIDES, convert_preference
from selfverify.tasks.base import DemonstratedConversation, DemonstratedTurn, Verdict
from selfverify.tasks.row_task import RowSequence, RowTask, RowTaskConfig, training_place
from selfverify.tasks.tool_calls import CallForm, written_call
from selfverify.tasks.tool_episode import ACTION

Cuts = Sequence[Sequence[tuple[str, int]]]
"""For each turn its channels, as `Observation.channels` has them."""


@dataclass(frozen=True, slots=True)
class HeardReply:
    """The reply to a turn.

    Args:
        role: The role of the reply.
        parts: Texts and places for images.
        images: The images, not read yet.
    """

    role: Literal["user", "tool"]
    parts: list[dict[str, Any]]
    images: list[ImageRef]

    def reply(self) -> Observation:
        """The reply, with its images read.

        Raises:
            DataError: An image cannot be read.
        """
        images = [ref.open() for ref in self.images]
        return Observation([dict(part) for part in self.parts], images, self.role)


class Replayed(Episode):
    """Gives the replies of a conversation again, to any words; behind the last reply the conversation is
    over.

    Args:
        heard: The replies.
        cuts: The channels of each turn; empty where all of each is an action.
    """

    channel = ACTION

    def __init__(self, heard: Sequence[HeardReply], cuts: Cuts = ()) -> None:
        self.heard, self.cuts = heard, cuts

    def expected_observations(self) -> Sequence[Observation]:
        return [
            HeardReply(role, [{"type": "text", "text": ""}], []).reply()
            for role in dict.fromkeys(heard.role for heard in self.heard)
        ]

    def step(self, said: PolicyTurn) -> Observation:
        """Give the next reply of the conversation.

        Raises:
            DataError: An image cannot be read.
        """
        reply = Observation(done=True) if said.turn >= len(self.heard) else self.heard[said.turn].reply()
        if said.turn < len(self.cuts):
            reply.channels = [(channel, start) for channel, start in self.cuts[said.turn]]
        return reply

    def result(self) -> EpisodeResult:
        return EpisodeResult()


def turns_of(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Where the assistant's messages stand."""
    return [place for place, message in enumerate(messages) if message["role"] == "assistant"]


def heard_between(messages: Sequence[Mapping[str, Any]]) -> list[HeardReply]:
    """The messages between the assistant's."""
    found = []
    for before, after in itertools.pairwise(turns_of(messages)):
        told = messages[before + 1 : after]
        parts: list[dict[str, Any]] = []
        for number, message in enumerate(told):
            parts += [{"type": "text", "text": "\n"}] if number else []
            parts += content_parts(message["content"])
        found.append(HeardReply(told[0]["role"], *_divided(parts)))
    return found


def asked_of(messages: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[Image]]:
    """Messages as a problem has them, and their images.

    Raises:
        DataError: An image cannot be read.
    """
    found, images = [], []
    for message in messages:
        parts, refs = _divided(content_parts(message["content"]))
        found.append({"role": message["role"], "content": parts})
        images += [ref.open() for ref in refs]
    return found, images


def _divided(parts: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[ImageRef]]:
    """Parts with places for images, texts side by side joined; and the images."""
    joined = joined_parts(parts)
    places = [{"type": "image"} if part["type"] == "image" else {**part} for part in joined]
    return places, [part["image"] for part in joined if part["type"] == "image"]


class ConversationsConfig(RowTaskConfig):
    """Which conversations there are, and how they are learnt."""

    learn: Literal["turns", "conversations"] = "turns"
    """`turns`: each turn of the assistant is a problem of its own, behind all that was said before (SmartSnap
    §4.1); `conversations`: all turns of a conversation at once."""

    sample: int | None = Field(None, ge=1)
    """Learn from so many of the problems only, drawn by the run's seed (the paper: 100,000 of 550,000
    turns)."""

    calls: CallForm = "tagged"
    """How calls are written that the file has as `tool_calls`: between <tool_call> tags, as Qwen's models do;
    as plain JSON without words, as Llama's; or as plain JSON whose texts begin with a space (`spaced`), as
    small models copy words."""

    @model_validator(mode="after")
    def _check(self) -> ConversationsConfig:
        if self.uniform_over is not None:
            raise ValueError("uniform_over is for questions; conversations are drawn with `sample`")
        return self


class Conversations(RowTask):
    """The turns of the assistant are demonstrated; what others said in between is replied as it stands.

    This is for supervised fine-tuning (`conversations-sft`). SmartSnap §4.1: existing trajectories and those
    of teachers become pairs of a conversation so far and the next turn, of which some are drawn.
    """

    name = "conversations"
    summary = "conversations from files, to be imitated turn by turn"
    config_class = ConversationsConfig
    config: ConversationsConfig
    convert = staticmethod(convert_conversation)
    needs = ("messages",)
    tags = ("answer",)
    limits = RolloutLimits(turns=100)

    def __init__(
        self, config: ConversationsConfig | None = None, rows: Mapping[Split, RowSequence] | None = None
    ) -> None:
        super().__init__(config, rows)
        self._turns: dict[Split, NDArray[np.int64]] = {}

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """Return a conversation's problem. Training goes through all again and again, each time in another
        order."""
        if split != "train":
            return self.numbered(split, seed, index)
        place, turn = training_place(seed, index, len(self._chosen(split, seed)))
        found = self.numbered(split, seed, place)
        return replace(found, id=f"{found.id}/pass-{turn + 1}") if turn else found

    def numbered(self, split: Split, seed: int, place: int) -> Problem:
        """Problem ``place`` of those that are learnt from, in the files' order.

        Raises:
            DataError: There are fewer.
        """
        chosen = self._chosen(split, seed)
        if place >= len(chosen):
            raise DataError(f"the {split} data make {len(chosen)} problems, not {place + 1}")
        number, last = self._turns_of(split)[chosen[place]].tolist()
        row, id = self.row_at(split, number)
        return self._asked(row, id if self.config.learn == "conversations" else f"{id}/turn-{last + 1}", last)

    def ask(self, row: Row, id: str) -> Problem:
        """Return a problem of the whole conversation, up to the assistant's last turn."""
        return self._asked(row, id, len(turns_of(row["messages"])) - 1)

    def _asked(self, row: Row, id: str, last: int) -> Problem:
        """The problem of a conversation up to the assistant's turn ``last``."""
        taught = self.config.learn == "conversations" and row["taught"] == "all"
        turns = turns_of(row["messages"])
        messages, images = asked_of(row["messages"][: turns[0]])
        target = {
            "said": [self._written(row["messages"][place]) for place in turns[: last + 1]],
            "heard": heard_between(row["messages"])[:last],
            "cuts": row.get("cuts", [])[: last + 1],
            "taught": "all" if taught else "last",
        }
        words = "".join(part["text"] for part in messages[-1]["content"] if part["type"] == "text")
        meta = {"question": words, "category": row["category"]}
        return Problem(id, messages, images, target, meta, row["tools"])

    def count(self, split: Split) -> int:
        total = len(self._turns_of(split))
        return total if split != "train" or self.config.sample is None else min(self.config.sample, total)

    def open(self, problem: Problem, seed: int) -> Replayed:
        return Replayed(problem.target["heard"], problem.target["cuts"])

    def demonstrate_turns(self, problem: Problem, rng: np.random.Generator) -> Sequence[DemonstratedTurn]:
        """The assistant's turns, of which the last one or all are taught."""
        said, everything = problem.target["said"], problem.target["taught"] == "all"
        return [DemonstratedTurn(text, everything or n + 1 == len(said)) for n, text in enumerate(said)]

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        """Nothing is said of a policy's own words."""
        return Verdict(0.0, False, unjudged="conversations of files are to be imitated, not measured")

    def _turns_of(self, split: Split) -> NDArray[np.int64]:
        """``[N, 2]`` of all problems of a split the row and the assistant's turn, both from 0."""
        if split not in self._turns:
            found: list[tuple[int, int]] = []
            for number in range(len(self.rows(split))):
                row, _ = self.row_at(split, number)
                turns = len(turns_of(row["messages"]))
                alone = self.config.learn == "conversations" or row["taught"] == "last"
                found += [(number, turn) for turn in range(turns - 1 if alone else 0, turns)]
            self._turns[split] = np.array(found, dtype=np.int64).reshape(-1, 2)
        return self._turns[split]

    def _chosen(self, split: Split, seed: int) -> NDArray[np.int64]:
        """The problems of a split that are learnt from, in the files' order."""
        return _drawn(seed, len(self._turns_of(split)), self.count(split))

    def _written(self, message: dict[str, Any]) -> str:
        """An assistant's message as a policy writes it."""
        calls = [Call(call["name"], call["arguments"]) for call in message["calls"]]
        written = [written_call(call, self.config.calls) for call in calls]
        if message["content"] and (self.config.calls == "tagged" or not calls):
            written.insert(0, message["content"])  # only tags leave room for words beside calls
        return "\n".join(written)


@lru_cache(maxsize=4)
def _drawn(seed: int, total: int, most: int) -> NDArray[np.int64]:
    return np.sort(np.random.default_rng([seed, total]).permutation(total)[:most])


class Preferences(RowTask):
    """A problem is what both sides of a pair begin with; each side is a conversation that goes on from it.

    They are for `dpo` (VTS-V §3.3: the verifier's training).
    """

    name = "pairs"
    summary = "preferences among conversations from files, for direct preference optimisation"
    config_class = RowTaskConfig
    config: RowTaskConfig
    convert = staticmethod(convert_preference)
    needs = ("prompt", "chosen", "rejected")
    tags = ("answer",)
    limits = RolloutLimits(turns=100)

    def ask(self, row: Row, id: str) -> Problem:
        messages, images = asked_of(row["prompt"])
        target: dict[str, Any] = {
            side: {
                "said": [row[side][place]["content"] for place in turns_of(row[side])],
                "heard": heard_between(row[side]),
                "cuts": row.get(f"{side}_cuts", []),
            }
            for side in SIDES
        }
        if target["chosen"]["said"] == target["rejected"]["said"]:
            raise DataError(f"{id}: both sides say the same")
        return Problem(id, messages, images, target, {"category": row["category"]})

    def demonstrate_pair(self, problem: Problem) -> tuple[DemonstratedConversation, DemonstratedConversation]:
        chosen, rejected = (
            DemonstratedConversation(side["said"], Replayed(side["heard"], side["cuts"]))
            for side in (problem.target[name] for name in SIDES)
        )
        return chosen, rejected

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        """Nothing is said of a policy's own words."""
        return Verdict(0.0, False, unjudged="pairs are to be learnt from, not measured")
