"""The backend that runs a model in this process.

One worker thread samples and scores the candidates of concurrent requests as one batch. A request's prompt
may go on from a message that is begun (`own_prompt`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from types import NoneType
from typing import Any, NamedTuple, TypeGuard, TypeVar

from selfverify.clients.replies import Completion
from selfverify.core.config import SamplingConfig
from selfverify.core.errors import ConfigError, DataError, ServerError
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish, Group, SampleIndex, Segment, Trajectory
from selfverify.policy.chat import TooLongError, has_too_many_characters
from selfverify.policy.decoding import Sample
from selfverify.policy.encoding import Prompt, longest_row
from selfverify.policy.kv_sessions import TokenCallback
from selfverify.policy.packing import Continuation
from selfverify.policy.policy import Policy
from selfverify.rollouts.script_sampler import recite
from selfverify.serving.backend import NO_JUDGE, AnswerRequest, Backend, Draws, FreeQuestion
from selfverify.serving.completions import Likeliest, OwnStream, completion_of, likeliest
from selfverify.serving.schemas import ApiError, invalid_value
from selfverify.serving.visual import look_here
from selfverify.tasks.base import Verdict
from selfverify.verifiers.base import Verifier, score_groups
from selfverify.verifiers.policy_verifiers import Inline, PolicyJudge, Soft
from selfverify.verifiers.server_judge import ServerJudge
from selfverify.visual.episode import steps_of
from selfverify.visual.task import VisualToolTask


def own_prompt(policy: Policy, problem: Problem, goes_on: bool) -> Prompt:
    """Return the encoded messages.

    Args:
        policy: Goes on from them.
        problem: Has the messages.
        goes_on: Whether the last message is the policy's own beginning of its answer, rather than an answer
            that is over.

    Raises:
        ApiError: The beginning is no text.
        DataError: The messages cannot be encoded.
        TooLongError: They are longer than the model's context.
    """
    if not goes_on:
        return policy.encode([problem])[0]
    *before, last = problem.messages
    name = f"messages.{len(before)}"
    if last["role"] != "assistant" or not before:
        text = "continue_final_message: the last of several messages has to be the assistant's"
        raise invalid_value(f"{name}.role", text)
    if any(part["type"] != "text" for part in last["content"]):
        raise invalid_value(f"{name}.content", "continue_final_message: a message that goes on is text")
    [prompt] = policy.encode([replace(problem, messages=before)])
    begun = "".join(part["text"] for part in last["content"])
    where, limit = f"problem {problem.id}: {name}.content", longest_row(policy.model)
    tokens = policy.encoder.words(begun, where)
    if limit is not None and (total := len(prompt.ids) + len(tokens)) >= limit:
        raise TooLongError(f"{where}: its prompt takes {total} tokens and the model reads {limit}")
    return policy.encoder.extended(prompt, Continuation(tokens)) if tokens else prompt


T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Job:
    """One request's next candidates.

    Args:
        ask: The request.
        verifier: Scores the candidates; None leaves them without scores.
        sampling: How the candidates are sampled.
        seed: The seed of the sampling.
        stream: Gets the tokens of the first candidate while they are drawn.
        done: Gets what was drawn.
        finished: By place what is written to its end, while others of the batch are not.
    """

    ask: AnswerRequest
    verifier: Verifier | None
    sampling: SamplingConfig
    seed: int
    stream: OwnStream | None = None
    done: asyncio.Future[Drawn] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    finished: dict[int, Trajectory] = field(default_factory=dict)

    @property
    def pixels(self) -> int:
        """How many pixels the images of the request have."""
        return sum(picture.pixels for picture in self.ask.pictures)

    @property
    def batch_key(self) -> tuple[Any, ...]:
        """The settings that jobs have to share to be sampled together."""
        return (self.sampling, id(self.verifier))


class Drawn(NamedTuple):
    """A job's candidates, the likeliest tokens of each, and how many tokens their prompt has."""

    rows: list[Trajectory]
    likeliest: list[Likeliest]
    prompt_tokens: int


@dataclass(eq=False)
class Batcher:
    """Runs jobs in one worker thread. Jobs that come while it works form the next batch.

    Args:
        policy: Writes the candidates.
        most: The most candidates of a batch; a single job may have more.
        most_pixels: The most pixels of a batch, all of which are decoded; a single job may have more.
        on_batch: Called with the number of candidates of each batch.
    """

    policy: Policy
    most: int
    most_pixels: int
    on_batch: Callable[[int], None]
    _waiting: list[Job] = field(default_factory=list, init=False)
    _working: asyncio.Task[None] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._thread, self._beside = ThreadPoolExecutor(1, "sampling"), ThreadPoolExecutor(8, "beside")

    async def run(self, job: Job) -> Drawn:
        """Return what is drawn for a job, scored unless its verifier asks a server.

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

    async def call(self, work: Callable[[], T], beside: bool = False) -> T:
        """Return ``work()``, run in the worker thread: the model is used in no other.

        Work without the model is run ``beside`` it, in another thread.
        """
        thread = self._beside if beside else self._thread
        return await asyncio.get_running_loop().run_in_executor(thread, work)

    def close(self) -> None:
        """End the threads."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._beside.shutdown(wait=False, cancel_futures=True)

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
        results: Mapping[Job, Drawn | Exception] = {}
        try:
            results = await self.call(lambda: self._sample(batch))
        except Exception as error:
            if len(batch) > 1:
                return False
            results = dict.fromkeys(batch, error)
        for job, result in results.items():
            if job.done.done():
                continue  # the client has gone
            if isinstance(result, Exception):
                job.done.set_exception(result)
            else:
                job.done.set_result(result)
        return True

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

    def _sample(self, jobs: Sequence[Job]) -> dict[Job, Drawn | Exception]:
        """Return what became of each job that somebody still waits for. Runs in the worker thread."""
        results: dict[Job, Drawn | Exception] = {}
        problems: dict[Job, Problem] = {}
        prompts: dict[Job, Prompt] = {}
        for job in jobs:
            if not job.done.done():
                try:
                    problems[job] = _problem(job.ask)
                    goes_on = bool(job.ask.body.get("continue_final_message"))
                    prompts[job] = own_prompt(self.policy, problems[job], goes_on)
                except (ApiError, DataError) as error:
                    results[job] = error
        if not prompts:
            return results
        alive = list(prompts)

        def given_up() -> list[int]:
            return [place for place, job in enumerate(alive) if job.done.done()]

        def judged(job: Job, sample: Sample) -> Trajectory:
            opened = FreeQuestion(job.ask.best_of.answers).open(problems[job], job.seed)
            return recite(self.policy, problems[job], opened, [sample])

        sampled = self.policy.sample(
            list(prompts.values()),
            alive[0].sampling,
            seeds=[job.seed for job in alive],
            given_up=given_up,
            watcher=_Keeping(alive, judged),
        )
        groups = {
            job: Group(problems[job], [judged(job, sample) for sample in samples])
            for job, samples in zip(alive, sampled, strict=True)
            if not job.done.done()
        }
        if groups and not isinstance(alive[0].verifier, ServerJudge):
            score_groups(list(groups.values()), alive[0].verifier)
        for job, group in groups.items():
            answers, most = [row.tokens for row in group.trajectories], job.ask.body.get("top_logprobs", 0)
            others = likeliest(self.policy, prompts[job], answers, most, job.sampling.temperature)
            results[job] = Drawn(group.trajectories, others, len(prompts[job].ids))
        return results


class _Keeping(TokenCallback):
    """Keeps what is written to its end, for jobs whose time ends before their batch does; feeds streams."""

    def __init__(self, jobs: Sequence[Job], judged: Callable[[Job, Sample], Trajectory]) -> None:
        self._jobs, self._judged = jobs, judged
        for job in jobs:
            if job.stream is not None:
                job.stream.restart()  # a batch that failed is sampled again

    def token(self, place: SampleIndex, token: int) -> None:
        stream = self._jobs[place[0]].stream
        if stream is not None and place[1] == 0:
            stream.token(token)

    def ended(self, place: SampleIndex, sample: Sample) -> None:
        job = self._jobs[place[0]]
        if not job.done.done():
            job.finished[place[1]] = self._judged(job, sample)


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

    is_server = False
    default_verifier = "soft"

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
        self._longest = longest_row(policy.model)
        if self._longest is not None and max_tokens >= self._longest:
            raise ConfigError(f"max_tokens: the model has room for fewer than {self._longest} tokens")

    async def __aexit__(self, *_: object) -> None:
        self.batcher.close()

    def check_verifier(self, verifier: str) -> None:
        if verifier != "none" and verifier not in self.verifiers:
            known = ", ".join([*self.verifiers, "none"])
            raise ConfigError(f"there is no verifier {verifier!r}; there are {known}")

    def check(self, ask: AnswerRequest) -> None:
        body = ask.body
        if ask.model != self.model:
            text = f"the model {ask.model!r} does not exist; there is {self.model!r}"
            raise ApiError(404, text, "model_not_found", "model")
        goes_on = bool(body.get("continue_final_message"))
        if body.get("add_generation_prompt") is goes_on:
            text = "it is true without and false beside continue_final_message: true"
            raise invalid_value("add_generation_prompt", text)
        if goes_on and (ask.look is not None or ask.best_of.verifier != "none"):
            text = "nothing is chosen or looked at where an answer goes on: name MODEL@plain, and no look"
            raise invalid_value("continue_final_message", text)
        if self._longest is not None and self._tokens(body) >= self._longest:
            raise invalid_value("max_tokens", f"the model has room for fewer than {self._longest} tokens")

    def _tokens(self, body: Mapping[str, Any]) -> int:
        return int(body.get("max_completion_tokens") or body.get("max_tokens") or self.max_tokens)

    async def draw(self, ask: AnswerRequest, n: int, first: int, drawing: Draws) -> None:
        """Draw candidates. The same seed gives those that `selfverify solve` draws with it."""
        body = ask.body
        given = {name: body[name] for name in ("temperature", "top_p") if name in body}
        sampling = SamplingConfig(group_size=n, max_new_tokens=self._tokens(body), **given)
        body.setdefault("seed", secrets.randbits(40))  # the same in later draws for this question
        make = partial(
            completion_of, self.policy, verifier=drawing.verifier, stops=body.get("stop") or (),
            with_logprobs=bool(body.get("logprobs")),
        )  # fmt: skip
        verifier = self.verifiers.get(drawing.verifier)
        seed = (body["seed"] * 1_000_003 + first) & (2**63 - 1)
        if ask.look is not None:
            return await self._look(ask, ask.look, sampling, seed, drawing)
        stream = None
        if (write := ask.write) is not None:
            soon = asyncio.get_running_loop().call_soon_threadsafe
            stream = OwnStream(self.policy, body.get("stop") or (), lambda piece: soon(write, piece))
        job = Job(ask, verifier, sampling, seed, stream)

        def finish(drawn: Drawn) -> list[Completion]:
            if isinstance(verifier, ServerJudge):
                score_groups([Group(_problem(ask), drawn.rows)], verifier)
            return [make(row, others) for row, others in zip(drawn.rows, drawn.likeliest, strict=True)]

        try:
            drawn = await self.batcher.run(job)
            replies = await self.batcher.call(partial(finish, drawn), beside=True)
        except asyncio.CancelledError:  # at the deadline, or the client has gone
            rows = [job.finished[place] for place in sorted(job.finished)]
            ask.usage.lost(sum(row.written for row in rows))
            for row in rows:
                if isinstance(verifier, (Inline, Soft)) and "sampled" in row.scores:
                    row.scores.setdefault(drawing.verifier, row.scores["sampled"])
                drawing.arrived(make(row, []))
            raise
        written = sum(reply.tokens for reply in replies)
        ask.usage.add({"prompt_tokens": drawn.prompt_tokens, "completion_tokens": written}, 0)
        if _reads_again(verifier):  # it does not say what it reads and writes
            ask.usage.complete = False
        for reply in replies:
            drawing.arrived(reply)
            drawing.ready(reply)

    async def _look(
        self, ask: AnswerRequest, look: VisualToolTask, sampling: SamplingConfig, seed: int, drawing: Draws
    ) -> None:
        """Draw candidates that look at the images again; they are no batch with those of other requests."""
        verifier = self.verifiers.get(drawing.verifier)
        left_s = ask.deadline - asyncio.get_running_loop().time()

        first, told = len(drawing.candidates), ask.looked

        def work() -> tuple[list[tuple[int, Trajectory]], int]:
            return look_here(self.policy, look, _problem(ask), sampling, seed, verifier, left_s, first, told)

        rows, prompt_tokens = await self.batcher.call(work)
        written = sum(row.written for _, row in rows)
        ask.usage.add({"prompt_tokens": prompt_tokens, "completion_tokens": written}, 0)
        ask.usage.complete = False  # what tools have shown is not in it
        for number, row in rows:
            reply = completion_of(self.policy, row, [], drawing.verifier)
            reply.about = {"looks": steps_of(row), "conversation": number}
            drawing.arrived(reply)
            drawing.ready(reply)
        if len(rows) < sampling.group_size:
            raise ServerError("conversations failed or took too long", 500, "model_failed")

    async def verify(self, ask: AnswerRequest, answers: Sequence[str]) -> list[float | None]:
        """Score given answers as if the model had written them."""
        name = ask.best_of.verifier or "judge"
        verifier = self.verifiers.get(name)
        if not _reads_again(verifier):
            raise invalid_value("verifier", NO_JUDGE.format(name))
        for number, text in enumerate(answers):
            if has_too_many_characters(len(text), self._longest):
                text = f"it has {len(text)} characters, and the model reads {self._longest} tokens"
                raise ApiError(400, f"answer.{number}: {text}", "context_length_exceeded", "answer")
        tagged = [text if "</answer>" in text else f"<answer>{text}</answer>" for text in answers]
        rows = [
            Trajectory(
                [Segment("answer", [], text=text, finish=Finish.STOP)], parsed=Verdict(0.0, False, text)
            )
            for text in tagged
        ]

        def judged() -> list[float | None]:
            [scores] = verifier.score([Group(_problem(ask), rows)])
            return list(scores)

        scores = await self.batcher.call(judged, beside=isinstance(verifier, ServerJudge))
        ask.usage.lost()
        return scores

    async def models(self) -> list[dict[str, Any]]:
        return [{"id": self.model, "object": "model", "created": 0, "owned_by": "selfverify"}]


def _reads_again(verifier: Verifier | None) -> TypeGuard[Verifier]:
    """Whether a verifier reads a question and its candidates again, to judge them."""
    return not isinstance(verifier, (Inline, Soft, NoneType))


def _problem(ask: AnswerRequest) -> Problem:
    """Return the question with its images decoded, which takes many times the memory that they came in."""
    return Problem(ask.id or "request", ask.body["messages"], [picture.decode() for picture in ask.pictures])
