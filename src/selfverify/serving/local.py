"""A policy in this process behind the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from selfverify.errors import DataError, SelfVerifyError, ServerError
from selfverify.policy.config import SamplingConfig
from selfverify.policy.policy import Policy
from selfverify.remote.replies import Reply
from selfverify.rollouts.types import Group, Problem, Segment, Trajectory
from selfverify.selection.verifiers import Inline, Judge, Soft, Verifier
from selfverify.serving.batching import Batcher, Job
from selfverify.serving.errors import ApiError
from selfverify.serving.selecting import Ask, Drawing
from selfverify.solve import FreeQuestion
from selfverify.tasks.base import Judged

_UNSUPPORTED = (
    "tools", "tool_choice", "functions", "function_call", "logit_bias", "audio", "modalities", "prediction",
    "web_search_options",
)  # fmt: skip
"""Fields that would change an answer and that this backend cannot honour."""


class Local:
    """Draws candidates from a policy.

    Args:
        policy: Writes.
        model: Its name for clients.
        judges: Other verifiers than its own, by name.
        max_tokens: Length of a candidate where the request gives none.
        max_batch: See `Batcher`.
        on_batch: See `Batcher`.
    """

    name = "local"
    default_verifier = "soft"
    strict = True

    def __init__(
        self,
        policy: Policy,
        model: str,
        judges: Mapping[str, Verifier] | None = None,
        max_tokens: int = 256,
        max_batch: int = 64,
        on_batch: Callable[[int], None] | None = None,
    ) -> None:
        self.policy = policy
        self.model = model
        self.max_tokens = max_tokens
        self.verifiers: dict[str, Verifier] = {
            "inline": Inline(),
            "soft": Soft(policy),
            "greedy": Soft(policy, "greedy"),
            "judge": Judge(policy),
            **(judges or {}),
        }
        self.batcher = Batcher(policy, self.verifiers, max_batch, on_batch)
        config = policy.model.config.get_text_config()
        self._longest = getattr(config, "max_position_embeddings", None)

    def check(self, ask: Ask) -> None:
        """See `Backend`."""
        body = ask.body
        if ask.model != self.model:
            text = f"the model {ask.model!r} does not exist; there is {self.model!r}"
            raise ApiError(404, text, "model_not_found", "model")
        for name in _UNSUPPORTED:
            if body.get(name):
                raise ApiError(400, f"{name} is not supported by this model", "unsupported_parameter", name)
        for name in ("frequency_penalty", "presence_penalty"):
            if body.get(name):
                raise ApiError(400, f"{name} other than 0 is not supported", "unsupported_parameter", name)
        if body.get("top_logprobs"):
            text = "top_logprobs is not supported; logprobs is"
            raise ApiError(400, text, "unsupported_parameter", "top_logprobs")
        if body.get("response_format", {"type": "text"}) != {"type": "text"}:
            text = "response_format other than text is not supported"
            raise ApiError(400, text, "unsupported_parameter", "response_format")
        verifier = ask.best_of.verifier
        if verifier is not None and verifier != "none" and verifier not in self.verifiers:
            known = ", ".join([*self.verifiers, "none"])
            text = f"best_of.verifier: there is no verifier {verifier!r}; there are {known}"
            raise ApiError(400, text, "invalid_value", "best_of.verifier")
        if self._longest is not None and self._tokens(body) >= self._longest:
            text = f"max_tokens: the model has room for fewer than {self._longest} tokens"
            raise ApiError(400, text, "invalid_value", "max_tokens")

    def _tokens(self, body: Mapping[str, Any]) -> int:
        return int(body.get("max_completion_tokens") or body.get("max_tokens") or self.max_tokens)

    async def draw(self, ask: Ask, n: int, first: int, drawing: Drawing) -> ServerError | None:
        """See `Backend`. The same seed gives the candidates that `selfverify solve` draws with it."""
        body = ask.body
        sampling = SamplingConfig(
            group_size=n,
            temperature=body.get("temperature", 1.0),
            top_p=body.get("top_p", 0.99),
            max_new_tokens=self._tokens(body),
        )
        kind, problem = FreeQuestion(ask.best_of.answers), await self._problem(ask)
        seed = (body["seed"] * 1_000_003 + first) & (2**63 - 1)
        done: asyncio.Future[tuple[list[Reply], int]] = asyncio.get_running_loop().create_future()
        stops, logprobs = tuple(body.get("stop") or ()), bool(body.get("logprobs"))
        job = Job(problem, kind, drawing.verifier, sampling, seed, stops, logprobs, done)
        try:
            replies, prompt_tokens = await self._run(job)
        except asyncio.CancelledError:
            ask.usage.lost()
            raise
        written = sum(reply.tokens for reply in replies)
        ask.usage.add({"prompt_tokens": prompt_tokens, "completion_tokens": written}, 0)
        if not isinstance(self.verifiers.get(drawing.verifier, Inline()), (Inline, Soft)):
            ask.usage.complete = False  # verifiers do not say what they read and write
        for reply in replies:
            drawing.arrived(reply)
            drawing.ready(reply)
        return None

    async def _run(self, job: Job) -> tuple[list[Reply], int]:
        try:
            return await self.batcher.run(job)
        except DataError as error:
            raise ApiError(400, str(error), "invalid_value", "messages") from None
        except SelfVerifyError as error:
            raise ServerError(str(error), 500, "model_failed") from None

    async def _problem(self, ask: Ask) -> Problem:
        messages = own_messages(ask.body["messages"])
        images = [await asyncio.to_thread(picture.decode) for picture in ask.pictures]
        return Problem(ask.id or "request", messages, list(images))

    async def verify(self, ask: Ask, answers: Sequence[str]) -> list[float | None]:
        """See `Backend`: as if the answers were the model's own."""
        name = ask.best_of.verifier or "judge"
        verifier = self.verifiers.get(name)
        if verifier is None or isinstance(verifier, (Inline, Soft)):
            text = f"verifier: {name!r} reads only what the model wrote itself; leave it out, or name a judge"
            raise ApiError(400, text, "invalid_value", "verifier")
        problem = await self._problem(ask)
        rows = [given_answer(text) for text in answers]
        try:
            [scores] = await self.batcher.call(lambda: verifier.score([Group(problem, rows)]))
        except DataError as error:
            raise ApiError(400, str(error), "invalid_value", "messages") from None
        ask.usage.lost()
        return list(scores)

    async def models(self) -> list[dict[str, Any]]:
        """See `Backend`."""
        return [{"id": self.model, "object": "model", "created": 0, "owned_by": "selfverify"}]

    def close(self) -> None:
        """End the worker thread."""
        self.batcher.close()


def given_answer(text: str) -> Trajectory:
    """Somebody's answer as a trajectory to be judged; in an answer tag if it is in none."""
    text = text if "</answer>" in text else f"<answer>{text}</answer>"
    return Trajectory([Segment("answer", [], text=text, finish="stop")], parsed=Judged(0.0, False, text))


def own_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """OpenAI's messages as this library's: parts of text, and a place for each image.

    Raises:
        ApiError: A role, a content or a part that is not understood.
    """
    found = []
    for m, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        role = "system" if role == "developer" else role
        if role not in ("system", "user", "assistant"):
            raise _misfit(f"messages.{m}.role", f"{role!r} is not understood by this model")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if not isinstance(content, list) or not content:
            raise _misfit(f"messages.{m}.content", "a text or a list of parts is needed")
        found.append({"role": role, "content": [_part(part, m, p) for p, part in enumerate(content)]})
    return found


def _part(part: Any, m: int, p: int) -> dict[str, Any]:
    place = f"messages.{m}.content.{p}"
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind == "image_url":
        return {"type": "image"}
    raise _misfit(place, f"a part of type {kind!r} is not understood by this model")


def _misfit(param: str, why: str) -> ApiError:
    return ApiError(400, f"{param}: {why}", "invalid_value", param)
