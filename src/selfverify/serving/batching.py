"""One worker thread that samples and scores the candidates of concurrent requests as one batch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from selfverify.core.errors import DataError, ServerError
from selfverify.core.problem import Problem
from selfverify.core.sampling_settings import SamplingConfig
from selfverify.core.trajectory import Group, Trajectory
from selfverify.policy.encoding import Prompt
from selfverify.policy.policy import Policy
from selfverify.policy.sampling import Sample
from selfverify.remote.replies import Reply
from selfverify.rollouts.single_turn import make_trajectory
from selfverify.serving.free_question import FreeQuestion
from selfverify.verifiers.base import Verifier, verify

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Job:
    """One request's next candidates.

    Args:
        problem: The question.
        task: Reads the answers, for verifiers.
        verifier: The name of the verifier, or ``none``.
        sampling: How the candidates are sampled.
        seed: The seed of the sampling.
        make: Makes a candidate of a trajectory.
        done: Gets the candidates, and how many tokens the prompt has.
    """

    problem: Problem
    task: FreeQuestion
    verifier: str
    sampling: SamplingConfig
    seed: int
    make: Callable[[Trajectory], Reply]
    done: asyncio.Future[tuple[list[Reply], int]]

    @property
    def batch_key(self) -> tuple[Any, ...]:
        """What jobs have to share to be sampled together."""
        return (self.sampling, self.verifier)


class Batcher:
    """Runs jobs in one worker thread. Jobs that come while it works form the next batch.

    Args:
        policy: Writes the candidates.
        verifiers: The verifiers, by name.
        most: The most candidates of a batch; a single job may have more.
        on_batch: Called with the number of candidates of each batch.
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
        """Return the job's candidates, scored, and the number of its prompt's tokens.

        Raises:
            SelfVerifyError: The problem cannot be encoded or scored.
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
        """Return ``work()``, run in the worker thread: the model is used in no other."""
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
            if not found:  # one job may be the cause: try each alone, now that the failed batch is freed
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
        """Take the oldest job and those that can be sampled with it."""
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
        """Return one result or exception per job. Runs in the worker thread."""
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
            found[i] = ([job.make(row) for row in rows], len(prompt.ids))
        return found

    def _group(self, job: Job, samples: Sequence[Sample]) -> Group:
        made = [make_trajectory(self.policy, job.task, job.problem, sample) for sample in samples]
        return Group(job.problem, made)
