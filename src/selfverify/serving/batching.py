"""One worker thread that samples and scores the candidates of concurrent requests as one batch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from selfverify.clients.replies import Completion
from selfverify.core.config import SamplingConfig
from selfverify.core.errors import DataError
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Group, Trajectory
from selfverify.policy.decoding import Sample
from selfverify.policy.encoding import Prompt
from selfverify.policy.kv_sessions import SampleIndex, TokenCallback
from selfverify.policy.policy import Policy
from selfverify.rollouts.rollout import recite
from selfverify.serving.api_errors import ApiError
from selfverify.serving.free_question import FreeQuestion
from selfverify.serving.likeliest import Likeliest, likeliest
from selfverify.serving.own_prompts import own_prompt
from selfverify.serving.own_streams import OwnStream
from selfverify.verifiers.base import Verifier, score_groups
from selfverify.verifiers.make_verifier import ServerJudge

logger = logging.getLogger(__name__)

T = TypeVar("T")


class FinishedSample(NamedTuple):
    """A sample that is written to its end, and the judged trajectory that it makes."""

    sample: Sample
    row: Trajectory


@dataclass(slots=True, eq=False)
class Job:
    """One request's next candidates.

    Args:
        ask: Makes the question, with its images decoded; called in the worker thread when its batch begins.
        pixels: How many pixels its images have.
        task: Reads the answers, for verifiers.
        verifier: Scores the candidates; None leaves them without scores.
        sampling: How the candidates are sampled.
        seed: The seed of the sampling.
        make: Makes a candidate of a trajectory and the alternatives of its tokens.
        goes_on: Whether the question ends with the beginning of its answer.
        alternatives: How many of the likeliest tokens are wanted in each place.
        done: Gets the candidates, and how many tokens the prompt has.
        stream: Gets the tokens of the first candidate while they are drawn.
        finished: By place what is written to its end, while others of the batch are not.
    """

    ask: Callable[[], Problem]
    pixels: int
    task: FreeQuestion
    verifier: Verifier | None
    sampling: SamplingConfig
    seed: int
    make: Callable[[Trajectory, Likeliest], Completion]
    goes_on: bool = False
    alternatives: int = 0
    stream: OwnStream | None = None
    done: asyncio.Future[tuple[list[Completion], int]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    finished: dict[int, FinishedSample] = field(default_factory=dict)

    @property
    def batch_key(self) -> tuple[Any, ...]:
        """What jobs have to share to be sampled together."""
        return (self.sampling, id(self.verifier))


class Unjudged(NamedTuple):
    """Candidates, without images, that a server is still to judge, and how many tokens their prompt has."""

    rows: list[Trajectory]
    likeliest: list[Likeliest]
    tokens: int


Results = dict[Job, tuple[list[Completion], int] | Unjudged | Exception]
"""What `Batcher.run` returns or raises for each job."""


class Batcher:
    """Runs jobs in one worker thread. Jobs that come while it works form the next batch.

    Args:
        policy: Writes the candidates.
        most: The most candidates of a batch; a single job may have more.
        most_pixels: The most pixels of a batch, all of which are decoded; a single job may have more.
        on_batch: Called with the number of candidates of each batch.
    """

    def __init__(
        self,
        policy: Policy,
        most: int = 64,
        most_pixels: int = 20_000_000,
        on_batch: Callable[[int], None] = lambda size: None,
    ) -> None:
        self.policy = policy
        self.most = most
        self.most_pixels = most_pixels
        self.on_batch = on_batch
        self._thread = ThreadPoolExecutor(1, "sampling")
        self._judging = ThreadPoolExecutor(8, "judging")
        """For verifiers that only wait for a server: the model works meanwhile."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: list[Job] = []
        self._working: asyncio.Task[None] | None = None

    async def run(self, job: Job) -> tuple[list[Completion], int]:
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

    async def call(self, work: Callable[[], T], verifier: Verifier | None = None) -> T:
        """Return ``work()``, run in the worker thread: the model is used in no other.

        Work for a ``verifier`` that asks a server is run in a thread beside it.
        """
        thread = self._judging if isinstance(verifier, ServerJudge) else self._thread
        return await asyncio.get_running_loop().run_in_executor(thread, work)

    def close(self) -> None:
        """End the threads."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._judging.shutdown(wait=False, cancel_futures=True)

    async def _work(self) -> None:
        await asyncio.sleep(0)  # requests that came at the same moment belong together
        while self._waiting:
            batch = self._next()
            self.on_batch(sum(job.sampling.group_size for job in batch))
            if not await self._done(batch):  # one job may be the cause, and the failed batch is freed by now
                for job in batch:
                    await self._done([job])

    async def _done(self, batch: Sequence[Job]) -> bool:
        """Sample a batch and tell each job what became of it; return False if a batch of several failed."""
        results: Results = {}
        judged = isinstance(batch[0].verifier, ServerJudge)
        try:
            results = await self.call(lambda: self._sample(batch, judged))
        except Exception as error:
            if len(batch) > 1:
                return False
            results = dict.fromkeys(batch, error)
        for job, result in results.items():
            if isinstance(result, Unjudged):
                task = asyncio.create_task(self._judge(job, result))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                _tell(job, result)
        return True

    async def _judge(self, job: Job, drawn: Unjudged) -> None:
        """Have a server judge a job's candidates, and tell the job of them."""
        try:
            await self.call(lambda: score_groups([Group(job.ask(), drawn.rows)], job.verifier), job.verifier)
            made = map(job.make, drawn.rows, drawn.likeliest)
            _tell(job, ([*made], drawn.tokens))
        except Exception as error:
            _tell(job, error)

    def _next(self) -> list[Job]:
        """Take the oldest job and those that can be sampled with it."""
        oldest = self._waiting[0]
        room, pixels, batch = self.most, self.most_pixels, list[Job]()
        for job in self._waiting:
            size = job.sampling.group_size
            fits = size <= room and job.pixels <= pixels
            if job.batch_key == oldest.batch_key and (fits or not batch):
                batch.append(job)
                room -= size
                pixels -= job.pixels
        self._waiting = [job for job in self._waiting if job not in batch]
        return batch

    def _sample(self, jobs: Sequence[Job], unjudged: bool = False) -> Results:
        """Return what became of each job that somebody still waits for. Runs in the worker thread.

        Args:
            jobs: The batch.
            unjudged: Leave the judging to others.
        """
        results: Results = {}
        problems: dict[Job, Problem] = {}
        prompts: dict[Job, Prompt] = {}
        for job in jobs:
            if not job.done.done():
                try:
                    problems[job] = job.ask()
                    prompts[job] = own_prompt(self.policy, problems[job], job.goes_on)
                except (ApiError, DataError) as error:
                    results[job] = error
        if not prompts:
            return results
        alive = list(prompts)

        def given_up() -> list[int]:
            return [place for place, job in enumerate(alive) if job.done.done()]

        sampled = self.policy.sample(
            list(prompts.values()),
            alive[0].sampling,
            seeds=[job.seed for job in alive],
            given_up=given_up,
            watcher=_Keeping(alive, lambda job, sample: self._told(job, problems[job], sample)),
        )

        def row_of(job: Job, place: int, sample: Sample) -> Trajectory:
            known = job.finished.get(place)
            return known.row if known and known.sample == sample else self._told(job, problems[job], sample)

        groups = {
            job: Group(problems[job], [row_of(job, g, sample) for g, sample in enumerate(samples)])
            for job, samples in zip(alive, sampled, strict=True)
            if not job.done.done()
        }
        others = {job: self._likeliest(job, prompts[job], group) for job, group in groups.items()}
        if unjudged:
            return results | {
                job: Unjudged(group.trajectories, others[job], len(prompts[job].ids))
                for job, group in groups.items()
            }
        if groups:
            score_groups(list(groups.values()), alive[0].verifier)
        for job, group in groups.items():
            made = map(job.make, group.trajectories, others[job])
            results[job] = ([*made], len(prompts[job].ids))
        return results

    def _likeliest(self, job: Job, prompt: Prompt, group: Group) -> list[Likeliest]:
        """The alternatives of each candidate's tokens; none where nobody asks for them."""
        if not job.alternatives:
            return [[] for _ in group.trajectories]
        answers = [row.tokens for row in group.trajectories]
        return likeliest(self.policy, prompt, answers, job.alternatives, job.sampling.temperature)

    def _told(self, job: Job, problem: Problem, sample: Sample) -> Trajectory:
        """One sampled answer, judged by the job's task."""
        return recite(self.policy, problem, job.task.open(problem, job.seed), [sample])


class _Keeping(TokenCallback):
    """Keeps what is written to its end, for jobs whose time ends before their batch does; feeds streams."""

    def __init__(self, jobs: Sequence[Job], told: Callable[[Job, Sample], Trajectory]) -> None:
        self._jobs, self._told = jobs, told
        for job in jobs:
            if job.stream is not None:
                job.stream.restart()  # a batch that failed is sampled again

    def token(self, place: SampleIndex, token: int) -> None:
        """See `TokenCallback`."""
        stream = self._jobs[place[0]].stream
        if stream is not None and place[1] == 0:
            stream.token(token)

    def ended(self, place: SampleIndex, sample: Sample) -> None:
        """See `TokenCallback`."""
        job = self._jobs[place[0]]
        if not job.done.done():
            job.finished[place[1]] = FinishedSample(sample, self._told(job, sample))


def _tell(job: Job, result: tuple[list[Completion], int] | Exception) -> None:
    """Tell a job what became of it, if somebody still waits."""
    if job.done.done():
        return
    if isinstance(result, Exception):
        job.done.set_exception(result)
    else:
        job.done.set_result(result)
