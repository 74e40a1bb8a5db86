"""Who can act in a session without a model that is loaded here: a script, or a model behind a server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from selfverify.clients.openai_client import OpenAIClient, ServerConfig, Usage, estimated_tokens, server_url
from selfverify.clients.replies import text_of
from selfverify.core import event_loop
from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.errors import ServerError
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish
from selfverify.rollouts.server_messages import ServerMessages


class Speaker(ABC):
    """Says something in turn, and hears what comes of it."""

    @abstractmethod
    def hear(self, reply: Observation) -> None:
        """Be shown what the environment says."""

    @abstractmethod
    def speak(self, turn: int) -> PolicyTurn:
        """Say what is to be done next."""


class ScriptSpeaker(Speaker):
    """Says what was written beforehand.

    Args:
        texts: One for each turn.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)

    def hear(self, reply: Observation) -> None:
        """See `Speaker`. It knows the way."""

    def speak(self, turn: int) -> PolicyTurn:
        """See `Speaker`. Behind its end it says nothing."""
        return PolicyTurn(self.texts[turn] if turn < len(self.texts) else "", [], Finish.STOP, turn)


class AwaitedSpeaker(Speaker):
    """Says what another speaker says, as long as somebody waits for it.

    Args:
        speaker: The other speaker.
        over: Whether nobody waits any more.
    """

    def __init__(self, speaker: Speaker, over: Callable[[], bool]) -> None:
        self.speaker, self.over = speaker, over

    def hear(self, reply: Observation) -> None:
        """See `Speaker`."""
        self.speaker.hear(reply)

    def speak(self, turn: int) -> PolicyTurn:
        """See `Speaker`.

        Raises:
            ServerError: Nobody waits.
        """
        if self.over():
            raise ServerError("nobody waits for this conversation any more", 504, "timeout")
        return self.speaker.speak(turn)


class ServerSpeaker(Speaker):
    """A model behind an OpenAI-compatible server, with tools as the server knows them.

    Calls are taken from the reply's ``tool_calls``; a reply without them is read as text, in which a model
    may have written its call.

    Args:
        problem: What is asked; its tools are offered.
        server: Where the server is.
        fields: The request's other fields: model, temperature, ``max_tokens``, seed.
        usage: Counts what its turns cost, each of which reads all that was said and shown before.

    Raises:
        ConfigError: The address is none.
    """

    def __init__(
        self, problem: Problem, server: ServerConfig, fields: dict[str, Any], usage: Usage | None = None
    ) -> None:
        server_url(server.url)
        self.server, self.fields = server, fields
        self.talk = ServerMessages(problem)
        self.usage = Usage() if usage is None else usage

    @property
    def messages(self) -> list[dict[str, Any]]:
        """All that was said and shown."""
        return self.talk.messages

    def hear(self, reply: Observation) -> None:
        """See `Speaker`."""
        self.talk.hear(reply)

    def speak(self, turn: int) -> PolicyTurn:
        """See `Speaker`.

        Raises:
            ServerError: The server cannot be reached, refuses, or answers what is no chat completion.
        """
        return event_loop.start(self.answer(turn)).result()

    def recall(self, text: str, turn: int) -> None:
        """Take a turn as its own that somebody else has said."""
        self.talk.recall(text, turn)

    async def answer(self, turn: int) -> PolicyTurn:
        """What it says next; see `speak`, which waits for it."""
        choice = await self._asked()
        message = choice["message"]
        content = message.get("content")
        text = content if isinstance(content, str) else ""
        calls = message.get("tool_calls")
        finish = Finish.LENGTH if choice.get("finish_reason") == "length" else Finish.STOP
        return self.talk.said(text, calls if isinstance(calls, list) else [], finish, turn)

    async def _asked(self) -> dict[str, Any]:
        body = {**self.fields, **self.talk.body()}
        async with OpenAIClient(self.server) as client:
            reply = await client.chat(body, self.usage.lost)
        choice: dict[str, Any] = reply["choices"][0]
        self.usage.add(reply.get("usage"), estimated_tokens(text_of(choice["message"].get("content"))))
        return choice


def hold(episode: Episode, speaker: Speaker, turns: int) -> EpisodeResult:
    """Hold a conversation with who needs no policy, to its end, and return what came of it.

    Raises:
        SelfVerifyError: The speaker or the environment has failed; nothing is closed then.
    """
    first = episode.reset()
    if first is not None:
        speaker.hear(first)
    for turn in range(turns):
        said = speaker.speak(turn)
        reply = episode.step(said)
        if reply.done or said.finish != Finish.STOP:
            break
        speaker.hear(reply)
    return episode.result()
