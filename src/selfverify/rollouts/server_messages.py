"""A conversation with a model behind a server: what it was asked, said and shown, as OpenAI's messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from selfverify.clients.openai_client import image_url, openai_messages
from selfverify.core.episode import Observation, PolicyTurn
from selfverify.core.problem import BETWEEN, Problem, content_parts
from selfverify.core.trajectory import Finish
from selfverify.tasks.tool_calls import read_calls, read_json


class ServerMessages:
    """The messages so far, with calls and results of tools as servers know them.

    Args:
        problem: What the conversation is about; the model is offered its tools.

    Raises:
        DataError: The problem has more or fewer places than images.
    """

    def __init__(self, problem: Problem) -> None:
        self.messages = openai_messages(problem)
        self.tools = problem.tools
        self._named: list[str] = []
        """The ids of the calls in the last message."""
        self._before = [*self.messages], self._named
        """Both as they were before something was shown last."""

    def body(self) -> dict[str, Any]:
        """The fields of a request that say what the model reads."""
        # An empty list of tools is refused by some servers.
        return {"messages": [*self.messages], **({"tools": self.tools} if self.tools else {})}

    def hear(self, reply: Observation) -> None:
        """Add what the episode shows, images between texts as it shows them.

        Behind calls, images follow in a message of the user: those of tools hold text.
        """
        if reply.undo:
            messages, self._named = self._before
            self.messages = [*messages]
        else:
            self._before = [*self.messages], self._named
        parts = content_parts(reply.content)
        words = "\n".join(part["text"] for part in parts if part["type"] == "text")
        for name in self._named:
            self.messages.append({"role": "tool", "tool_call_id": name, "content": words})
        left = iter(reply.images)
        told: list[dict[str, Any]] = []
        for part in parts:
            if part["type"] == "image":
                told.append({"type": "image_url", "image_url": {"url": image_url(next(left))}})
            elif not self._named and told and told[-1]["type"] == "text":
                told[-1]["text"] += "\n" + part["text"]
            elif not self._named:
                told.append({"type": "text", "text": part["text"]})
        if told or not self._named:
            self._told(told or [{"type": "text", "text": ""}])
        self._named = []

    def _told(self, parts: list[dict[str, Any]]) -> None:
        """Go on with the user's message: many chat templates refuse two in a row.

        Servers put nothing between two texts of a message, or one line break.
        """
        if self.messages[-1]["role"] == "user":
            *before, last = content_parts(self.messages.pop()["content"])
            if last["type"] == "text" and parts[0]["type"] == "text":
                last["text"] += BETWEEN + parts.pop(0)["text"]
            parts = [*before, last, *parts]
        alone = len(parts) == 1 and parts[0]["type"] == "text"  # which templates without parts read, too
        self.messages.append({"role": "user", "content": parts[0]["text"] if alone else parts})

    def said(self, text: str, calls: Sequence[Any], finish: Finish, turn: int) -> PolicyTurn:
        """Add what the model says.

        Args:
            text: Its words.
            calls: OpenAI's ``tool_calls`` of its message, which are its text's end to us.
            finish: How it ended.
            turn: How often it had spoken before.
        """
        if not calls:
            self.messages.append({"role": "assistant", "content": text})
            return PolicyTurn(text, [], finish, turn)
        self.messages.append({"role": "assistant", "content": text, "tool_calls": calls})
        self._named = [str(call.get("id", "")) for call in calls if isinstance(call, Mapping)]
        read = _read(calls)
        shown = read.get("tool_calls", calls)
        written = "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in shown)
        return PolicyTurn("\n".join(part for part in (text, written) if part), [], finish, turn, message=read)

    def recall(self, text: str, turn: int) -> None:
        """Take a turn as the model's own that somebody else has said."""
        read = read_calls(PolicyTurn(text, [], Finish.STOP, turn), self.tools)
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


def _read(calls: Sequence[Any]) -> dict[str, Any]:
    """A server's ``tool_calls`` as `PolicyTurn.message` has them: their arguments are JSON in a text."""
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
