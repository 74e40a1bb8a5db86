"""What the Responses API answers: the response's object, and the events in which it comes.

The objects and events are those of OpenAI's reference of ``POST /v1/responses``.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from selfverify.remote.usage import Usage
from selfverify.serving.api_errors import ApiError
from selfverify.serving.completions import pieces
from selfverify.serving.responses_input import ResponsesRequest

Tell = Callable[[dict[str, Any]], None]
"""Gets each event."""

_TEXT = {"output_text": "text", "refusal": "refusal", "reasoning_text": "text"}
"""The parts that are written piece by piece, and the field with their text."""

_OUTSIDE = {"id", "object", "created", "model", "choices", "usage", "best_of"}
"""The fields of a completion that a response has otherwise."""


class ResponseWriter:
    """Writes one response, item by item, and tells of each step.

    Args:
        asked: The request.
        tell: Gets the events.
    """

    def __init__(self, asked: ResponsesRequest, tell: Tell = lambda event: None) -> None:
        self.output: list[dict[str, Any]] = []
        self.response = _skeleton(asked)
        self._tell_event = tell
        self._number = 0
        self._kind: str | None = None
        self._written: list[str] = []

    def write(self, kind: str, piece: str) -> None:
        """Append to the text of a kind: ``output_text``, ``refusal`` or ``reasoning_text``."""
        if self._kind != kind:
            self.close()
            self._open(kind)
        self._written.append(piece)
        more: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
        self._tell(f"response.{kind}.delta", **self._part_place, delta=piece, **more)

    def close(self, status: str = "completed", logprobs: Sequence[Mapping[str, Any]] = ()) -> None:
        """End the text that is being written, if one is."""
        kind, item = self._kind, self.output[-1] if self.output else {}
        if kind is None:
            return
        text, part = "".join(self._written), item["content"][0]
        part[_TEXT[kind]] = text
        more: dict[str, Any] = {}
        if kind == "output_text":
            part["logprobs"] = more["logprobs"] = list(logprobs)
        self._tell(f"response.{kind}.done", **self._part_place, **{_TEXT[kind]: text}, **more)
        self._tell("response.content_part.done", **self._part_place, part=part)
        item["status"] = status
        self._tell("response.output_item.done", output_index=len(self.output) - 1, item=item)
        self._kind, self._written = None, []

    def call(self, call: Mapping[str, Any]) -> None:
        """Write a call of a tool, as chat completions have it."""
        self.close()
        is_custom = call.get("type") == "custom"
        inner = call.get("custom" if is_custom else "function")
        inner = inner if isinstance(inner, Mapping) else {}
        field = "input" if is_custom else "arguments"
        name, text, given = (
            _as_text(value) for value in (inner.get("name"), inner.get(field), call.get("id"))
        )
        item: dict[str, Any] = {
            "id": _new_id("ctc" if is_custom else "fc"),
            "type": "custom_tool_call" if is_custom else "function_call",
            "status": "in_progress",
            "call_id": given or _new_id("call"),
            "name": name,
            field: "",
        }
        self.output.append(item)
        place = {"output_index": len(self.output) - 1, "item_id": item["id"]}
        self._tell("response.output_item.added", output_index=place["output_index"], item=item)
        kind = "custom_tool_call_input" if is_custom else "function_call_arguments"
        if text:
            self._tell(f"response.{kind}.delta", **place, delta=text)
        named = {} if is_custom else {"name": name}
        self._tell(f"response.{kind}.done", **place, **{field: text}, **named)
        item |= {field: text, "status": "completed"}
        self._tell("response.output_item.done", output_index=place["output_index"], item=item)

    def say(self, choice: Mapping[str, Any], sent: int = 0) -> Iterator[None]:
        """Write the rest of a chat completion's choice, of whose text ``sent`` characters are written, step
        by step: it yields after each, so that a slow reader can be waited for."""
        message = choice["message"]
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(reasoning, str) and reasoning and not self.output:
            self.write("reasoning_text", reasoning)
            yield
        for piece in pieces((message.get("content") or "")[sent:]):
            self.write("output_text", piece)
            yield
        cut = choice.get("finish_reason") in ("length", "content_filter")
        logprobs = (choice.get("logprobs") or {}).get("content") or ()
        self.close("incomplete" if cut else "completed", logprobs)
        yield
        refusal = message.get("refusal")
        if isinstance(refusal, str) and refusal:
            self.write("refusal", refusal)
            self.close()
            yield
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, Mapping):
                self.call(call)
                yield

    def end(self, finish: object, usage: Usage, more: Mapping[str, Any]) -> dict[str, Any]:
        """End the response and return it.

        Args:
            finish: The chat completion's ``finish_reason``.
            usage: What it cost.
            more: Further fields.
        """
        reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(str(finish))
        status = "incomplete" if reason else "completed"
        self.close(status)
        self.response |= {
            **more,
            "status": status,
            "incomplete_details": {"reason": reason} if reason else None,
            "usage": usage_of(usage),
        }
        if not reason:
            self.response["completed_at"] = int(time.time())
        self._tell(f"response.{status}", response=self.whole)
        return self.whole

    def fail(self, error: ApiError) -> None:
        """Tell that there will be no more."""
        self.close("incomplete")
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        if 400 <= error.status < 429:
            code = "invalid_prompt"
        told = {"code": code, "message": str(error), "param": error.param, "type": error.code}
        self.response |= {"status": "failed", "error": told}
        self._tell("response.failed", response=self.whole)

    @property
    def whole(self) -> dict[str, Any]:
        """The response as it is now."""
        return self.response | {"output": self.output}

    @property
    def _part_place(self) -> dict[str, Any]:
        return {"item_id": self.output[-1]["id"], "output_index": len(self.output) - 1, "content_index": 0}

    def _open(self, kind: str) -> None:
        part: dict[str, Any] = {"type": kind, _TEXT[kind]: ""}
        if kind == "output_text":
            part |= {"annotations": [], "logprobs": []}
        if kind == "reasoning_text":
            item: dict[str, Any] = {"id": _new_id("rs"), "type": "reasoning", "summary": []}
        else:
            item = {"id": _new_id("msg"), "type": "message", "role": "assistant"}
        item |= {"status": "in_progress", "content": []}
        self.output.append(item)
        self._kind = kind
        self._tell("response.output_item.added", output_index=len(self.output) - 1, item=item)
        self._tell("response.content_part.added", **self._part_place, part=part)
        item["content"].append(part)

    def _tell(self, kind: str, **fields: Any) -> None:
        if not self._number:  # it begins with the first thing there is to tell
            self._number = 2
            begun = self.response | {"output": []}
            for number, first in enumerate(("response.created", "response.in_progress")):
                self._tell_event({"type": first, "sequence_number": number, "response": begun})
        self._tell_event({"type": kind, "sequence_number": self._number, **fields})
        self._number += 1


def usage_of(usage: Usage) -> dict[str, Any]:
    """Return what a response cost, every candidate and judge counted."""
    chat = usage.as_openai(usage.candidate_tokens)
    written, read = chat["completion_tokens_details"], chat["prompt_tokens_details"]
    return {
        "input_tokens": chat["prompt_tokens"],
        "input_tokens_details": {"cache_write_tokens": 0, **read},
        "output_tokens": chat["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0, **written},
        "total_tokens": chat["total_tokens"],
    }


def more_of(whole: Mapping[str, Any], is_chosen: bool) -> dict[str, Any]:
    """Return what a completion says besides its message: how its answer was chosen, and a server's own."""
    choice = whole["choices"][0]
    found = {name: value for name, value in whole.items() if name not in _OUTSIDE}
    found |= {name: choice[name] for name in ("looks",) if name in choice}
    if is_chosen:
        found |= {"verification": choice["verification"], "best_of": whole["best_of"]}
    return found


def _skeleton(asked: ResponsesRequest) -> dict[str, Any]:
    """Return a response before its first word."""
    return {
        "id": _new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "model": asked.model,
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None} | (asked.reasoning or {}),
        "store": False,
        "temperature": asked.temperature,
        "text": {"format": {"type": "text"}} | (asked.text or {}),
        "tool_choice": asked.tool_choice or "auto",
        "tools": asked.tools or [],
        "top_p": asked.top_p,
        "truncation": "disabled",
        "usage": None,
        "metadata": asked.metadata or {},
    }


def _new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(24)}"


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else ""
