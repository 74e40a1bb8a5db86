"""`conversations`: what others have said, from files, for supervised fine-tuning (`conversations-sft`).

SmartSnap §4.1: existing trajectories and those of teachers become pairs of a conversation so far and the next
turn, of which some are drawn.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from selfverify.core.environment import Call
from selfverify.core.episode import Ending, Episode, Reply, Said
from selfverify.core.episode_settings import EpisodeLimits
from selfverify.core.errors import DataError
from selfverify.core.problem import Problem
from selfverify.core.splits import Split
from selfverify.core.tags import Tagged
from selfverify.data.fields import Row
from selfverify.data.tool_conversations import convert_conversation
from selfverify.tasks.base import Judged, ShownTurn
from selfverify.tasks.call_forms import CallForm, written_call
from selfverify.tasks.row_task import RowSequence, RowTask, RowTaskConfig, training_place
from selfverify.tasks.tool_episode import ACTION


class ConversationsConfig(RowTaskConfig):
    """Which conversations there are, and how they are learnt."""

    learn: Literal["turns", "conversations"] = Field(
        "turns",
        description="`turns`: each turn of the assistant is a problem of its own, behind all that was said "
        "before (SmartSnap §4.1); `conversations`: all turns of a conversation at once.",
    )
    sample: int | None = Field(
        None,
        ge=1,
        description="Learn from so many of the problems only, drawn by the run's seed (the paper: 100,000 of "
        "550,000 turns).",
    )
    calls: CallForm = Field(
        "tagged",
        description="How calls are written that the file has as `tool_calls`: between <tool_call> tags, as "
        "Qwen's models do; as plain JSON without words, as Llama's; or as plain JSON whose texts begin with "
        "a space (`spaced`), as small models copy words.",
    )


class Conversations(RowTask):
    """The turns of the assistant are demonstrated; what others said in between is replied as it stands."""

    name = "conversations"
    summary = "conversations from files, to be imitated turn by turn"
    config_class = ConversationsConfig
    config: ConversationsConfig
    convert = staticmethod(convert_conversation)
    needs = ("messages",)
    tags = ("answer",)
    limits = EpisodeLimits(turns=100)

    def __init__(
        self, config: ConversationsConfig | None = None, rows: Mapping[Split, RowSequence] | None = None
    ) -> None:
        super().__init__(config, rows)
        self._turns: dict[Split, NDArray[np.int64]] = {}
        self._drawn: dict[tuple[Split, int], NDArray[np.int64]] = {}

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """See `Task.problem`. Training goes through all again and again, each time in another order."""
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
        """See `RowTask.ask`: the whole conversation, up to the assistant's last turn."""
        return self._asked(row, id, len(_turns(row)) - 1)

    def _asked(self, row: Row, id: str, last: int) -> Problem:
        """The problem of a conversation up to the assistant's turn ``last``."""
        taught = self.config.learn == "conversations" and row["taught"] == "all"
        asked = row["messages"][: _turns(row)[0]]
        said = [self._written(row["messages"][place]) for place in _turns(row)[: last + 1]]
        target = {"said": said, "heard": _heard(row)[:last], "taught": "all" if taught else "last"}
        return Problem(
            id=id,
            messages=[
                {"role": m["role"], "content": [{"type": "text", "text": m["content"]}]} for m in asked
            ],
            target=target,
            meta={"question": asked[-1]["content"], "category": row["category"]},
            tools=row["tools"],
        )

    def count(self, split: Split) -> int:
        """See `Task.count`."""
        total = len(self._turns_of(split))
        return total if split != "train" or self.config.sample is None else min(self.config.sample, total)

    def open(self, problem: Problem, seed: int) -> Replayed:
        """See `Task.open`."""
        return Replayed(problem.target["heard"])

    def demonstrate_turns(self, problem: Problem, rng: np.random.Generator) -> Sequence[ShownTurn]:
        """What the assistant said, of which the last turn or all of it is taught."""
        said, everything = problem.target["said"], problem.target["taught"] == "all"
        return [ShownTurn(text, everything or n + 1 == len(said)) for n, text in enumerate(said)]

    def judge(self, problem: Problem, tagged: Tagged) -> Judged:
        """Nothing is said of a policy's own words."""
        return Judged(0.0, False, unjudged="conversations of files are to be imitated, not measured")

    def _turns_of(self, split: Split) -> NDArray[np.int64]:
        """``[N, 2]`` of all problems of a split the row and the assistant's turn, both from 0."""
        if split not in self._turns:
            found: list[tuple[int, int]] = []
            for number in range(len(self.rows(split))):
                row, _ = self.row_at(split, number)
                turns = len(_turns(row))
                alone = self.config.learn == "conversations" or row["taught"] == "last"
                found += [(number, turn) for turn in range(turns - 1 if alone else 0, turns)]
            self._turns[split] = np.array(found, dtype=np.int64).reshape(-1, 2)
        return self._turns[split]

    def _chosen(self, split: Split, seed: int) -> NDArray[np.int64]:
        """The problems of a split that are learnt from, in the files' order."""
        total = len(self._turns_of(split))
        most = self.count(split)
        if most == total:
            return np.arange(total)
        if (split, seed) not in self._drawn:
            rng = np.random.default_rng([seed, total])
            self._drawn[split, seed] = np.sort(rng.permutation(total)[:most])
        return self._drawn[split, seed]

    def _written(self, message: dict[str, Any]) -> str:
        """An assistant's message as a policy writes it."""
        calls = [Call(call["name"], call["arguments"]) for call in message["calls"]]
        written = [written_call(call, self.config.calls) for call in calls]
        if message["content"] and (self.config.calls == "tagged" or not calls):
            written.insert(0, message["content"])  # only tags leave room for words beside calls
        return "\n".join(written)


class Replayed(Episode):
    """Replies what was replied, whatever is said.

    Args:
        heard: Role and text of each reply; behind the last one the conversation is over.
    """

    channel = ACTION

    def __init__(self, heard: Sequence[Sequence[str]]) -> None:
        self.heard = heard

    def foreseen(self) -> Sequence[Reply]:
        """See `Episode`."""
        return [_reply(role, "") for role in dict.fromkeys(role for role, _ in self.heard)]

    def reply(self, said: Said) -> Reply:
        """See `Episode`."""
        if said.turn >= len(self.heard):
            return Reply(done=True)
        return _reply(*self.heard[said.turn])

    def ending(self) -> Ending:
        """See `Episode`."""
        return Ending()


def _reply(role: str, text: str) -> Reply:
    return Reply([{"type": "text", "text": text}], role="tool" if role == "tool" else "user")


def _turns(row: Row) -> list[int]:
    """Where the assistant's messages stand."""
    return [place for place, message in enumerate(row["messages"]) if message["role"] == "assistant"]


def _heard(row: Row) -> list[tuple[str, str]]:
    """Role and text of what stands between the assistant's messages."""
    between = [row["messages"][before + 1 : after] for before, after in itertools.pairwise(_turns(row))]
    return [(told[0]["role"], "\n".join(message["content"] for message in told)) for told in between]
