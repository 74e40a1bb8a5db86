"""A step verifier behind servers: the log-ratios of what a reasoner says, read from prompt log-probs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from selfverify.clients.openai_client import REFUSALS, ModelOnServer, OpenAIClient
from selfverify.core import event_loop
from selfverify.core.episode import Observation, PolicyTurn, RolloutHook
from selfverify.core.errors import ConfigError, DataError, ServerError
from selfverify.core.events import note
from selfverify.core.problem import Problem, content_parts, openai_messages, openai_parts
from selfverify.rollouts.wrappers import Message
from selfverify.visual.calls import read_look_call
from selfverify.visual.stopping import LOG_RATIO, LOG_RATIO_PLAN

logger = logging.getLogger(__name__)


Tokens = list[tuple[str, float]]
"""Tokens as text, with their log-probabilities in nats."""


class ServedModel(ModelOnServer):
    """A model behind a server that tells the log-probabilities of a prompt, as vLLM does."""

    async def last_message(self, messages: Sequence[Message], tools: Sequence[Any]) -> Tokens:
        """The tokens of the last message, which is an assistant's, without the one that ends it.

        Raises:
            ConfigError: The server does not continue messages, or tells no log-probabilities of prompts.
            ServerError: It cannot be reached or has failed.
        """
        body: dict[str, Any] = {"model": self.model, "max_tokens": 1, "temperature": 0}
        if tools:
            body["tools"] = [*tools]
        whole = {
            "messages": [*messages], "prompt_logprobs": 1,
            "add_generation_prompt": False, "continue_final_message": True,
        }  # fmt: skip
        try:
            async with OpenAIClient(self.server) as client:
                before = await client.chat(body | {"messages": [*messages[:-1]]})
                reply = await client.chat(body | whole)
        except ServerError as error:
            if error.status in REFUSALS:
                raise ConfigError(f"{self._name}: it refuses prompt_logprobs: {error.message}") from None
            raise
        entries, start = reply.get("prompt_logprobs"), (before.get("usage") or {}).get("prompt_tokens")
        if not isinstance(entries, list) or not isinstance(start, int):
            raise ConfigError(
                f"{self._name}: it tells no prompt_logprobs or no usage; a served verifier needs vLLM"
            )
        return [self._token(entry) for entry in entries[start:]]

    @property
    def _name(self) -> str:
        return f"the verifier's model {self.model} at {self.server.url}"

    def _token(self, entry: Any) -> tuple[str, float]:
        try:
            # The prompt's own token comes first; the likeliest one may follow.
            [first, *_] = entry.values()
            return str(first["decoded_token"]), float(first["logprob"])
        except (AttributeError, KeyError, TypeError, ValueError):
            raise ConfigError(f"{self._name}: what it tells of a prompt cannot be read: {entry!r}") from None


@dataclass(slots=True)
class _HeardTalk:
    """A conversation so far: its messages, whether something could not be heard, and how many messages there
    were before the reasoner was shown something (0: it was shown nothing)."""

    problem: Problem
    messages: list[Message] = field(default_factory=list)
    deaf: bool = False
    before: int = 0


class ServedVerifier(RolloutHook):
    """Scores each turn by log V_φ/V_φ0 over its tokens, with both models behind servers.

    It does what `StepVerifier` does, with three differences: the token that ends a message
    is not in the sum; a server keeps keys as it likes (vLLM by its prefix cache, which it leaves alone where
    it has to tell the log-probabilities of a prompt); and where tokens hold parts of characters the plan's
    part is known up to these. A turn that a server fails to score is noted as ``not_verified``, and nothing
    is measured in that conversation from then on.

    Args:
        verifier: V_φ.
        base: V_φ0.
    """

    def __init__(self, verifier: ServedModel, base: ServedModel) -> None:
        self.models = (verifier, base)
        self._talks: dict[tuple[int, int], _HeardTalk] = {}

    def begin(self, problems: Mapping[tuple[int, int], Problem]) -> None:
        """Keep the messages of conversations that begin.

        Raises:
            ConfigError: In a problem the environment speaks first.
            DataError: A problem has images without a place.
        """
        if begins := [problem.id for problem in problems.values() if problem.environment_begins]:
            raise ConfigError(f"problem {begins[0]}: its environment speaks first, which no verifier follows")
        self._talks = {
            place: _HeardTalk(problem, openai_messages(problem)) for place, problem in problems.items()
        }

    def open(self, indices: Sequence[tuple[int, int]]) -> None:
        for place in indices:
            problem = self._talks[place].problem
            self._talks[place] = _HeardTalk(problem, openai_messages(problem))

    def said(self, said: Mapping[tuple[int, int], PolicyTurn]) -> None:
        """Measure new turns. Both models are asked about all conversations at the same time.

        Raises:
            ConfigError: A server cannot tell what is needed.
        """
        asked = {}
        for place, words in said.items():
            talk = self._talks[place]
            talk.messages.append({"role": "assistant", "content": words.text})
            if not talk.deaf and words.text:
                asked[place] = [
                    event_loop.start(model.last_message(talk.messages[:], talk.problem.tools))
                    for model in self.models
                ]
        for place, futures in asked.items():
            talk, words = self._talks[place], said[place]
            try:
                own, base = (_checked_tokens(future.result(), words.text) for future in futures)
                if [token for token, _ in own] != [token for token, _ in base]:
                    raise DataError("the verifier and its base have different tokens")
            except (DataError, ServerError) as error:
                talk.deaf = True
                name, turn = talk.problem.id, words.turn
                message = f"problem {name}: the verifier cannot follow a conversation any more: {error}"
                note(logger, "not_verified", message, problem=name, turn=turn, reason=str(error))
                continue
            read = read_look_call(words, talk.problem.tools, len(talk.problem.images))
            whole = plan = 0.0
            end = 0
            for (token, mine), (_, below) in zip(own, base, strict=True):
                end += len(token)
                whole += mine - below
                plan += mine - below if read.action_start and end <= read.action_start else 0.0
            words.values |= {LOG_RATIO: whole, LOG_RATIO_PLAN: plan}

    def shown(self, replies: Mapping[tuple[int, int], Observation]) -> None:
        for place, reply in replies.items():
            talk = self._talks[place]
            if reply.undo and talk.before:
                del talk.messages[talk.before :]  # what the reasoner has said last and was shown before that
            elif reply.undo:
                # As own models hear it: they have begun to speak, and have said nothing.
                talk.messages[-1] = {"role": "assistant", "content": ""}
            else:
                talk.before = len(talk.messages)
            content = openai_parts(content_parts(reply.content), iter(reply.images))
            talk.messages.append({"role": "user", "content": content})


def _checked_tokens(tokens: Tokens, text: str) -> Tokens:
    """Return the tokens after a check that they spell a text.

    Raises:
        DataError: They are others, as where a template writes something else before a message that it
            continues.
    """
    read = "".join(token for token, _ in tokens)
    # Parts of characters are told as a mark.
    if not tokens or ("\ufffd" not in read and read.strip() != text.strip()):
        raise DataError(f"the server's template writes {read[:80]!r} where {text[:80]!r} was said")
    return tokens
