"""A policy in this process: the candidates of concurrent requests are sampled and scored as one batch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from selfverify.errors import DataError, SelfVerifyError, ServerError
from selfverify.policy.config import SamplingConfig
from selfverify.policy.encoding import Prompt
from selfverify.policy.policy import Policy
from selfverify.remote.replies import Reply
from selfverify.rollouts.single_turn import make_trajectory
from selfverify.rollouts.types import Group, Problem, Segment, Trajectory
from selfverify.selection.verifiers import Inline, Judge, Soft, Verifier, verify
from selfverify.serving.errors import ApiError
from selfverify.serving.selecting import Ask, Drawing
from selfverify.solve import FreeQuestion
from selfverify.tasks.base import Judged

logger = logging.getLogger(__name__)

_UNSUPPORTED = (
    "tools", "tool_choice", "functions", "function_call", "logit_bias", "audio", "modalities", "prediction",
    "web_search_options",
)  # fmt: skip
"""Fields that would change an answer and that this backend cannot honour."""


@dataclass(slots=True, eq=False)
class Job:
    """One request's next candidates."""

    problem: Problem
    kind: FreeQuestion
    verifier: str
    sampling: SamplingConfig
    seed: int
    stops: tuple[str, ...]
    logprobs: bool
    done: asyncio.Future[tuple[list[Reply], int]]

    @property
    def batch_key(self) -> tuple[Any, ...]:
        """Jobs with the same key are sampled together."""
        return (self.sampling, self.verifier)


class Batcher:
    """Runs jobs in one worker thread. Those that come while it works go into the next batch together.

    Args:
        policy: Writes and scores.
        verifiers: By name.
        most: Candidates of a batch; a single job may have more.
        on_batch: Told how many candidates a batch has.
    """

    def __init__(
        self,
        policy: Policy,
        verifiers: Mapping[str, Verifier],
        most: int = 64,
        on_batch: Callable[[int], None] | None = None,
    ) -> None:
        self.policy = policy
        self.verifiers = verifiers
        self.most = most
        self.on_batch = on_batch or (lambda size: None)
        self._thread = ThreadPoolExecutor(1, "sampling")
        self._waiting: list[Job] = []
        self._working: asyncio.Task[None] | None = None

    async def run(self, job: Job) -> tuple[list[Reply], int]:
        """The job's candidates, scored, and its prompt's tokens.

        Raises:
            SelfVerifyError: The problem cannot be encoded, or scored.
        """
        self._waiting.append(job)
        if self._working is None or self._working.done():
            self._working = asyncio.ensure_future(self._work())
        try:
            return await job.done
        finally:
            if job in self._waiting:
                self._waiting.remove(job)

    async def call(self, work: Callable[[], Any]) -> Any:
        """``work()`` in the worker thread, where alone the model is used."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    async def _work(self) -> None:
        await asyncio.sleep(0)  # requests that came at the same moment belong together
        while self._waiting:
            batch = self._next()
            self.on_batch(sum(job.sampling.group_size for job in batch))
            try:
                found = await self.call(lambda batch=batch: self._sample(batch))  # type: ignore[misc]
            except Exception as error:
                if len(batch) > 1:  # one of them may be the cause: each alone, then
                    found = [await self._alone(job) for job in batch]
                else:
                    found = [error]
            for job, result in zip(batch, found, strict=True):
                if job.done.done():
                    continue
                if isinstance(result, BaseException):
                    job.done.set_exception(result)
                else:
                    job.done.set_result(result)

    async def _alone(self, job: Job) -> Any:
        if job.done.done():
            return None
        try:
            [found] = await self.call(lambda: self._sample([job]))
        except Exception as error:
            return error
        return found

    def _next(self) -> list[Job]:
        """The oldest job and those that can be sampled with it."""
        oldest = self._waiting[0]
        room, batch = self.most, list[Job]()
        for job in self._waiting:
            size = job.sampling.group_size
            if job.batch_key == oldest.batch_key and (size <= room or not batch):
                batch.append(job)
                room -= size
        self._waiting = [job for job in self._waiting if job not in batch]
        return batch

    def _sample(self, jobs: Sequence[Job]) -> list[Any]:
        """In the worker thread: one result or exception per job."""
        found: list[Any] = [None] * len(jobs)
        encoded: list[tuple[int, Prompt]] = []
        for i, job in enumerate(jobs):
            if job.done.done():
                continue
            try:
                encoded.append((i, self.policy.encode([job.problem])[0]))
            except DataError as error:
                found[i] = error
        if not encoded:
            return found
        alive = [jobs[i] for i, _ in encoded]
        sampling = alive[0].sampling

        def given_up() -> list[int]:
            return [place for place, job in enumerate(alive) if job.done.done()]

        prompts = [prompt for _, prompt in encoded]
        sampled = self.policy.sample(prompts, sampling, seeds=[job.seed for job in alive], given_up=given_up)
        groups = [
            Group(job.problem, [make_trajectory(self.policy, job.kind, job.problem, s) for s in samples])  # type: ignore[arg-type]
            for job, samples in zip(alive, sampled, strict=True)
        ]
        left = [place for place, job in enumerate(alive) if not job.done.done()]
        if alive[0].verifier != "none":
            verify([groups[place] for place in left], self.verifiers[alive[0].verifier])
        for place in left:
            i, prompt = encoded[place]
            job, rows = alive[place], groups[place].trajectories
            replies = [read_reply(self.policy, row, job.stops, job.logprobs) for row in rows]
            found[i] = (replies, len(prompt.ids))
        return found


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
        if (body.get("response_format") or {}).get("type", "text") != "text":
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
        replies, prompt_tokens = await self._run(job)
        written = sum(reply.tokens for reply in replies)
        ask.usage.add({"prompt_tokens": prompt_tokens, "completion_tokens": written}, 0)
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
        verifier = self.verifiers[name]
        if not isinstance(verifier, Judge):
            text = f"verifier: {name!r} reads only what the model wrote itself; leave it out, or name a judge"
            raise ApiError(400, text, "invalid_value", "verifier")
        problem = await self._problem(ask)
        rows = [given_answer(text) for text in answers]
        try:
            [scores] = await self.batcher.call(lambda: verifier.score([Group(problem, rows)]))
        except DataError as error:
            raise ApiError(400, str(error), "invalid_value", "messages") from None
        ask.usage.calls += 1
        return list(scores)

    async def models(self) -> list[dict[str, Any]]:
        """See `Backend`."""
        return [{"id": self.model, "object": "model", "created": 0, "owned_by": "selfverify"}]

    def close(self) -> None:
        """End the worker thread."""
        self.batcher.close()


def read_reply(policy: Policy, trajectory: Trajectory, stops: Sequence[str], with_logprobs: bool) -> Reply:
    """A trajectory as a completion: without its end token, and cut at the first of ``stops``."""
    tokens, finish = trajectory.tokens, str(trajectory.finish)
    told = tokens[:-1] if finish == "stop" else tokens
    text = policy.tokenizer.decode(told, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    if places:
        text, finish = text[: min(places)], "stop"
    logprobs: list[dict[str, Any]] = []
    if with_logprobs:
        pieces = [policy.tokenizer.decode([token]) for token in told]
        logprobs = [
            {"token": piece, "logprob": value, "bytes": list(piece.encode()), "top_logprobs": []}
            for piece, value in zip(pieces, trajectory.logprobs, strict=False)
        ]
    answer = trajectory.segments[0].logprobs
    mean = sum(answer) / len(answer) if answer else None
    return Reply(text, finish, len(tokens), logprobs, scores=dict(trajectory.scores), logprob=mean)


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
