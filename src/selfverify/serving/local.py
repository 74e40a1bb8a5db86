"""The backend that runs a model in this process."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import NoneType
from typing import Any, TypeGuard

from selfverify.core.config import SamplingConfig
from selfverify.core.errors import ConfigError, DataError, SelfVerifyError, ServerError
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish, Group, Segment, Trajectory
from selfverify.policy.chat import TooLongError, has_too_many_characters
from selfverify.policy.policy import Policy
from selfverify.serving.api_errors import ApiError, invalid_value
from selfverify.serving.backend import AnswerRequest, Backend, Draws
from selfverify.serving.batching import Batcher, Job
from selfverify.serving.free_question import FreeQuestion
from selfverify.serving.incoming import with_places
from selfverify.serving.looking_gate import look_here
from selfverify.serving.own_replies import completion_of, looked_completion
from selfverify.serving.own_streams import OwnStream
from selfverify.tasks.base import Verdict
from selfverify.verifiers.base import Verifier
from selfverify.verifiers.policy_verifiers import Inline, PolicyJudge, Soft
from selfverify.visual.task import VisualToolTask

_UNSUPPORTED = dict.fromkeys(
    (
        "tools", "tool_choice", "functions", "function_call", "logit_bias", "audio", "modalities",
        "prediction", "web_search_options",
    ),
    "is not supported by this model",
) | {
    "frequency_penalty": "other than 0 is not supported",
    "presence_penalty": "other than 0 is not supported",
}  # fmt: skip
"""Fields that would change an answer and that this backend cannot honour, and what is said of them."""


class Local(Backend):
    """Draws candidates from a policy.

    Args:
        policy: Writes the candidates.
        model: The model's name for clients.
        judges: Further verifiers, by name.
        max_tokens: The length of a candidate where a request gives none.
        max_batch: See `Batcher`.
        max_pixels: See `Batcher`.
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
        max_pixels: int = 20_000_000,
        on_batch: Callable[[int], None] = lambda size: None,
    ) -> None:
        self.policy = policy
        self.model = model
        self.max_tokens = max_tokens
        self.verifiers: dict[str, Verifier] = {
            "inline": Inline(),
            "soft": Soft(policy),
            "greedy": Soft(policy, "greedy"),
            "judge": PolicyJudge(policy),
            **(judges or {}),
        }
        self.batcher = Batcher(policy, max_batch, max_pixels, on_batch)
        config = policy.model.config.get_text_config()
        self._longest = getattr(config, "max_position_embeddings", None)
        if self._longest is not None and max_tokens >= self._longest:
            raise ConfigError(f"max_tokens: the model has room for fewer than {self._longest} tokens")

    async def __aexit__(self, *_: object) -> None:
        self.batcher.close()

    def check_verifier(self, verifier: str) -> None:
        """See `Backend`."""
        if verifier != "none" and verifier not in self.verifiers:
            known = ", ".join([*self.verifiers, "none"])
            raise ConfigError(f"there is no verifier {verifier!r}; there are {known}")

    def check(self, ask: AnswerRequest) -> None:
        """See `Backend`."""
        body = ask.body
        if ask.model != self.model:
            text = f"the model {ask.model!r} does not exist; there is {self.model!r}"
            raise ApiError(404, text, "model_not_found", "model")
        for name, text in _UNSUPPORTED.items():
            if body.get(name):
                raise ApiError(400, f"{name} {text}", "unsupported_parameter", name)
        if body.get("response_format", {"type": "text"}) != {"type": "text"}:
            text = "response_format other than text is not supported"
            raise ApiError(400, text, "unsupported_parameter", "response_format")
        if body.get("top_logprobs") and not body.get("logprobs"):
            raise invalid_value("top_logprobs", "it needs logprobs: true")
        _check_going_on(ask)
        if self._longest is not None and self._tokens(body) >= self._longest:
            raise invalid_value("max_tokens", f"the model has room for fewer than {self._longest} tokens")

    def own_messages(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """See `Backend`: parts of text, and a place for each image."""
        return with_places(messages)

    def _tokens(self, body: Mapping[str, Any]) -> int:
        return int(body.get("max_completion_tokens") or body.get("max_tokens") or self.max_tokens)

    async def draw(self, ask: AnswerRequest, n: int, first: int, drawing: Draws) -> ServerError | None:
        """See `Backend`. The same seed gives the candidates that `selfverify solve` draws with it."""
        body = ask.body
        sampling = SamplingConfig(
            group_size=n,
            temperature=body.get("temperature", 1.0),
            top_p=body.get("top_p", 0.99),
            max_new_tokens=self._tokens(body),
        )
        body.setdefault("seed", secrets.randbits(40))  # the same in later draws for this question
        make = partial(
            completion_of, self.policy, verifier=drawing.verifier, stops=body.get("stop") or (),
            with_logprobs=bool(body.get("logprobs")),
        )  # fmt: skip
        verifier = self.verifiers.get(drawing.verifier)
        if ask.look is not None:
            seed = (body["seed"] * 1_000_003 + first) & (2**63 - 1)
            return await self._look(ask, ask.look, sampling, seed, drawing)
        stream = None
        if ask.write is not None:
            stream = OwnStream(self.policy, body.get("stop") or (), _in_loop(ask.write))
        job = Job(
            ask=partial(_problem, ask),
            pixels=sum(picture.pixels for picture in ask.pictures),
            task=FreeQuestion(ask.best_of.answers),
            verifier=verifier,
            sampling=sampling,
            seed=(body["seed"] * 1_000_003 + first) & (2**63 - 1),
            make=make,
            goes_on=bool(body.get("continue_final_message")),
            alternatives=body.get("top_logprobs", 0),
            stream=stream,
        )
        try:
            replies, prompt_tokens = await self.batcher.run(job)
        except asyncio.CancelledError:  # at the deadline, or nobody waits any more
            rows = [job.finished[place].row for place in sorted(job.finished)]
            ask.usage.lost(sum(row.written for row in rows))
            for row in rows:
                if isinstance(verifier, (Inline, Soft)) and "sampled" in row.scores:
                    row.scores.setdefault(drawing.verifier, row.scores["sampled"])
                drawing.arrived(make(row, []))
            raise
        except DataError as error:
            raise _refused(error) from None
        except SelfVerifyError as error:
            return ServerError(str(error), 500, "model_failed")
        written = sum(reply.tokens for reply in replies)
        ask.usage.add({"prompt_tokens": prompt_tokens, "completion_tokens": written}, 0)
        if _reads_again(verifier):  # it does not say what it reads and writes
            ask.usage.complete = False
        for reply in replies:
            drawing.arrived(reply)
            drawing.ready(reply)
        return None

    async def _look(
        self, ask: AnswerRequest, look: VisualToolTask, sampling: SamplingConfig, seed: int, drawing: Draws
    ) -> ServerError | None:
        """Draw candidates that look at the images again; they are no batch with those of other requests."""
        verifier = self.verifiers.get(drawing.verifier)
        left_s = ask.deadline - asyncio.get_running_loop().time()

        first, looked = len(drawing.candidates), ask.looked

        def tell(number: int, step: Mapping[str, Any]) -> None:
            if looked is not None:
                looked(first + number, step)

        def work() -> tuple[list[tuple[int, Trajectory]], int]:
            return look_here(self.policy, look, _problem(ask), sampling, seed, verifier, left_s, tell)

        try:
            rows, prompt_tokens = await self.batcher.call(work)
        except DataError as error:
            raise _refused(error) from None
        except SelfVerifyError as error:
            return ServerError(str(error), 500, "model_failed")
        written = sum(row.written for _, row in rows)
        ask.usage.add({"prompt_tokens": prompt_tokens, "completion_tokens": written}, 0)
        ask.usage.complete = False  # what tools have shown is not in it
        for number, row in rows:
            reply = looked_completion(self.policy, row, drawing.verifier, first + number)
            drawing.arrived(reply)
            drawing.ready(reply)
        if len(rows) < sampling.group_size:
            return ServerError("conversations failed or took too long", 500, "model_failed")
        return None

    async def verify(self, ask: AnswerRequest, answers: Sequence[str]) -> list[float | None]:
        """See `Backend`. The answers are judged as if the model had written them."""
        name = ask.best_of.verifier or "judge"
        verifier = self.verifiers.get(name)
        if not _reads_again(verifier):
            text = f"{name!r} reads only what the model wrote itself; leave it out, or name a judge"
            raise invalid_value("verifier", text)
        for number, text in enumerate(answers):
            if has_too_many_characters(len(text), self._longest):
                text = f"it has {len(text)} characters, and the model reads {self._longest} tokens"
                raise ApiError(400, f"answer.{number}: {text}", "context_length_exceeded", "answer")
        rows = [given_answer(text) for text in answers]
        try:
            work = partial(_scores, ask, rows, verifier)
            scores = await self.batcher.call(work, verifier)
        except DataError as error:
            raise _refused(error) from None
        ask.usage.lost()
        return list(scores)

    async def models(self) -> list[dict[str, Any]]:
        """See `Backend`."""
        return [{"id": self.model, "object": "model", "created": 0, "owned_by": "selfverify"}]


def _refused(error: DataError) -> ApiError:
    """Return the error for messages that the model cannot read."""
    is_long = isinstance(error, TooLongError)
    return ApiError(400, str(error), "context_length_exceeded" if is_long else "invalid_value", "messages")


def _check_going_on(ask: AnswerRequest) -> None:
    """Refuse a request that says two things of how its prompt ends, or that would have candidates scored.

    Raises:
        ApiError: It does.
    """
    goes_on, begins = (ask.body.get(name) for name in ("continue_final_message", "add_generation_prompt"))
    for name, value in (("continue_final_message", goes_on), ("add_generation_prompt", begins)):
        if value is not None and not isinstance(value, bool):
            raise invalid_value(name, "true or false is needed")
    if goes_on and begins:
        raise invalid_value("add_generation_prompt", "it has to be false beside continue_final_message: true")
    if begins is False and not goes_on:
        raise invalid_value("add_generation_prompt", "false needs continue_final_message: true")
    if goes_on and (ask.look is not None or ask.best_of.verifier != "none"):
        text = "nothing is chosen or looked at where an answer goes on: name MODEL@plain, and no look"
        raise invalid_value("continue_final_message", text)


def _reads_again(verifier: Verifier | None) -> TypeGuard[Verifier]:
    """Whether a verifier reads a question and its candidates again, to judge them."""
    return not isinstance(verifier, (Inline, Soft, NoneType))


def _in_loop(write: Callable[[str], None]) -> Callable[[str], None]:
    """Return what lets the running loop call ``write``, from any thread."""
    loop = asyncio.get_running_loop()

    def put(piece: str) -> None:
        loop.call_soon_threadsafe(write, piece)

    return put


def _problem(ask: AnswerRequest) -> Problem:
    """Return the question with its images decoded, which takes many times the memory that they came in."""
    return Problem(ask.id or "request", ask.body["messages"], [picture.decode() for picture in ask.pictures])


def _scores(ask: AnswerRequest, rows: list[Trajectory], verifier: Verifier) -> list[float | None]:
    [scores] = verifier.score([Group(_problem(ask), rows)])
    return scores


def given_answer(text: str) -> Trajectory:
    """Return a given answer as a trajectory to be judged. An answer without a tag gets one."""
    text = text if "</answer>" in text else f"<answer>{text}</answer>"
    return Trajectory(
        [Segment("answer", [], text=text, finish=Finish.STOP)], parsed=Verdict(0.0, False, text)
    )
