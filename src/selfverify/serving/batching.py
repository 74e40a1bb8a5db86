"""One worker thread that samples and scores the candidates of concurrent requests as one batch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from selfverify.errors import DataError, ServerError
from selfverify.policy.config import SamplingConfig
from selfverify.policy.encoding import Prompt
from selfverify.policy.policy import Policy
from selfverify.policy.sampling import Sample
from selfverify.remote.replies import Reply
from selfverify.rollouts.single_turn import make_trajectory
from selfverify.rollouts.types import Group, Problem, Trajectory
from selfverify.selection.verifiers import Verifier, verify
from selfverify.solve import FreeQuestion

logger = logging.getLogger(__name__)


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
            found: list[Any] = []
            try:
                found = await self.call(lambda batch=batch: self._sample(batch))  # type: ignore[misc]
            except Exception as error:
                found = [error] if len(batch) == 1 else []
            if not found:  # one of them may be the cause: each alone; what failed has freed its memory by now
                found = [await self._alone(job) for job in batch]
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
        left = [place for place, job in enumerate(alive) if not job.done.done()]
        groups = {place: self._group(alive[place], sampled[place]) for place in left}
        if groups and alive[0].verifier != "none":
            try:
                verify(list(groups.values()), self.verifiers[alive[0].verifier])
            except ServerError as error:  # candidates without scores are better than none
                logger.warning("the verifier %s failed: %s", alive[0].verifier, error)
        for place in left:
            i, prompt = encoded[place]
            job, rows = alive[place], groups[place].trajectories
            replies = [read_reply(self.policy, row, job.stops, job.logprobs) for row in rows]
            found[i] = (replies, len(prompt.ids))
        return found

    def _group(self, job: Job, samples: Sequence[Sample]) -> Group:
        made = [make_trajectory(self.policy, job.kind, job.problem, sample) for sample in samples]  # type: ignore[arg-type]
        return Group(job.problem, made)


def read_reply(policy: Policy, trajectory: Trajectory, stops: Sequence[str], with_logprobs: bool) -> Reply:
    """A trajectory as a completion: without its end token, and cut at the first of ``stops``."""
    tokens, finish = trajectory.tokens, str(trajectory.finish)
    told = tokens[:-1] if finish == "stop" else tokens
    text = policy.tokenizer.decode(told, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    places = [place for stop in stops if stop and (place := text.find(stop)) >= 0]
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
