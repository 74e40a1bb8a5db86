"""Who can act in a session without a model that is loaded here: a script, or a model behind a server."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from selfverify.agents import background
from selfverify.core.episode import Ending, Episode, Reply, Said
from selfverify.core.errors import ServerError
from selfverify.core.message_content import BETWEEN, content_parts
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish
from selfverify.looking.visual_budget import estimated_tokens_of
from selfverify.remote.client import OpenAIClient
from selfverify.remote.connection import ServerSettings, server_url
from selfverify.remote.messages import image_url, openai_messages
from selfverify.remote.prompt_size import prompt_tokens
from selfverify.remote.server_replies import text_of
from selfverify.remote.usage import Usage, estimated_tokens
from selfverify.tasks.strict_json import read_json
from selfverify.tasks.tool_calls import read_calls


class Speaker(ABC):
    """Says something in turn, and hears what comes of it."""

    @abstractmethod
    def hear(self, reply: Reply) -> None:
        """Be shown what the environment says."""

    @abstractmethod
    def speak(self, turn: int) -> Said:
        """Say what is to be done next."""


class Script(Speaker):
    """Says what was written beforehand.

    Args:
        texts: One for each turn.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)

    def hear(self, reply: Reply) -> None:
        """See `Speaker`. It knows the way."""

    def speak(self, turn: int) -> Said:
        """See `Speaker`. Behind its end it says nothing."""
        return Said(self.texts[turn] if turn < len(self.texts) else "", [], Finish.STOP, turn)


class AwaitedSpeaker(Speaker):
    """Says what another speaker says, as long as somebody waits for it.

    Args:
        speaker: The other speaker.
        over: Whether nobody waits any more.
    """

    def __init__(self, speaker: Speaker, over: Callable[[], bool]) -> None:
        self.speaker, self.over = speaker, over

    def hear(self, reply: Reply) -> None:
        """See `Speaker`."""
        self.speaker.hear(reply)

    def speak(self, turn: int) -> Said:
        """See `Speaker`.

        Raises:
            ServerError: Nobody waits.
        """
        if self.over():
            raise ServerError("nobody waits for this conversation any more", 504, "timeout")
        return self.speaker.speak(turn)


class OnServer(Speaker):
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
        self, problem: Problem, server: ServerSettings, fields: dict[str, Any], usage: Usage | None = None
    ) -> None:
        server_url(server.url)
        self.server, self.fields, self.tools = server, fields, problem.tools
        self.messages = openai_messages(problem)
        self.usage = Usage() if usage is None else usage
        self._visual = sum(map(estimated_tokens_of, problem.images))
        self._named: list[str] = []
        """The ids of the calls in the last message."""
        self._before = [*self.messages], self._named
        """Both as they were before something was shown last."""

    def hear(self, reply: Reply) -> None:
        """See `Speaker`. Pictures follow in a message of the user: those of tools hold text only."""
        if reply.takes_back:
            messages, self._named = self._before
            self.messages = [*messages]
        else:
            self._before = [*self.messages], self._named
        parts = content_parts(reply.content)
        words = "\n".join(part["text"] for part in parts if part["type"] == "text")
        for name in self._named:
            self.messages.append({"role": "tool", "tool_call_id": name, "content": words})
        self._visual += sum(map(estimated_tokens_of, reply.images))
        shown = [{"type": "image_url", "image_url": {"url": image_url(image)}} for image in reply.images]
        told = [] if self._named else [{"type": "text", "text": words}]
        if told + shown:
            self._told(told + shown)
        self._named = []

    def _told(self, parts: list[dict[str, Any]]) -> None:
        """Go on with the user's message: many chat templates refuse two in a row.

        Servers put nothing between two texts of a message, or one line break.
        """
        if self.messages[-1]["role"] == "user":
            *before, last = content_parts(self.messages.pop()["content"])
            if last["type"] == "text":
                words = parts.pop(0)["text"] if parts[0]["type"] == "text" else ""
                last["text"] += BETWEEN + words
            parts = [*before, last, *parts]
        self.messages.append({"role": "user", "content": parts})

    def speak(self, turn: int) -> Said:
        """See `Speaker`.

        Raises:
            ServerError: The server cannot be reached, refuses, or answers what is no chat completion.
        """
        return background.start(self.answer(turn)).result()

    def recall(self, text: str, turn: int) -> None:
        """Take a turn as its own that somebody else has said."""
        read = read_calls(Said(text, [], Finish.STOP, turn), self.tools)
        words, tag, _ = text.partition("<tool_call>")
        if not read.calls or not tag:
            self.messages.append({"role": "assistant", "content": text})
            return
        self._named = [f"turn-{turn}-call-{number}" for number in range(len(read.calls))]
        calls = [
            {
                "id": name,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
            }
            for name, call in zip(self._named, read.calls, strict=True)
        ]
        self.messages.append({"role": "assistant", "content": words.strip(), "tool_calls": calls})

    async def answer(self, turn: int) -> Said:
        """What it says next; see `speak`, which waits for it."""
        choice = await self._asked()
        message = choice["message"]
        content = message.get("content")
        text = content if isinstance(content, str) else ""
        calls = message.get("tool_calls")
        finish = Finish.LENGTH if choice.get("finish_reason") == "length" else Finish.STOP
        if not isinstance(calls, list) or not calls:
            self.messages.append({"role": "assistant", "content": text})
            return Said(text, [], finish, turn)
        self.messages.append({"role": "assistant", "content": text, "tool_calls": calls})
        self._named = [str(call.get("id", "")) for call in calls if isinstance(call, dict)]
        read = _read(calls)
        shown = read.get("tool_calls", calls)
        written = "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in shown)
        return Said("\n".join(part for part in (text, written) if part), [], finish, turn, message=read)

    async def _asked(self) -> dict[str, Any]:
        body = {**self.fields, "messages": self.messages}
        if self.tools:  # an empty list is refused by some servers
            body["tools"] = self.tools
        async with OpenAIClient(self.server) as client:
            reply = await client.chat(body, self.usage.lost)
        choice: dict[str, Any] = reply["choices"][0]
        said, prompt = estimated_tokens(text_of(choice["message"].get("content"))), prompt_tokens(body)
        self.usage.add(reply.get("usage"), said, prompt=prompt + self._visual)
        return choice


def hold(episode: Episode, speaker: Speaker, turns: int) -> Ending:
    """Hold a conversation with who needs no policy, to its end, and return what came of it.

    Raises:
        SelfVerifyError: The speaker or the environment has failed; nothing is closed then.
    """
    first = episode.begin()
    if first is not None:
        speaker.hear(first)
    for turn in range(turns):
        said = speaker.speak(turn)
        reply = episode.reply(said)
        if reply.done or said.finish != Finish.STOP:
            break
        speaker.hear(reply)
    return episode.ending()


def _read(calls: list[Any]) -> dict[str, Any]:
    """A server's ``tool_calls`` as `Said.message` has them: their arguments are JSON in a text."""
    found = []
    try:
        for call in calls:
            function = call["function"]
            arguments = function["arguments"]
            if isinstance(arguments, str):
                arguments = read_json(arguments or "{}")
            found.append({"name": function["name"], "arguments": arguments})
    except (KeyError, TypeError, ValueError) as error:
        return {"error": f"its arguments are no JSON: {error}"[:300]}
    return {"tool_calls": found}
