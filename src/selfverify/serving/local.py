"""The backend that runs a model in this process.

One worker thread samples and scores the candidates of concurrent requests as one batch. A request's prompt
may go on from a message that is begun (`own_prompt`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from types import NoneType
from typing import Any, NamedTuple, TypeGuard, TypeVar

from selfverify.clients.replies import Completion
from selfverify.core.config import SamplingConfig
from selfverify.core.errors import ConfigError, DataError, SelfVerifyError, ServerError
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish, Group, Segment, Trajectory
from selfverify.policy.chat import TooLongError, has_too_many_characters
from selfverify.policy.decoding import Sample
from selfverify.policy.encoding import Prompt, longest_row
from selfverify.policy.kv_sessions import SampleIndex, TokenCallback
from selfverify.policy.packing import Continuation
from selfverify.policy.policy import Policy
from selfverify.rollouts.script_sampler import recite
from selfverify.serving.backend import AnswerRequest, Backend, Draws, FreeQuestion
from selfverify.serving.completions import Likeliest, OwnStream, completion_of, likeliest, looked_completion
from selfverify.serving.schemas import ApiError, ChatRequest, invalid_value, with_places
from selfverify.serving.visual import look_here
from selfverify.tasks.base import Verdict
from selfverify.verifiers.base import Verifier, score_groups
from selfverify.verifiers.policy_verifiers import Inline, PolicyJudge, Soft
from selfverify.verifiers.server_judge import ServerJudge
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


_TAKEN = {
    *ChatRequest.model_fields, "continue_final_message", "add_generation_prompt", "user", "metadata", "store",
    "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls",
}  # fmt: skip
"""Fields that this backend honours, or that change no answer."""
_NEUTRAL: dict[str, Sequence[Any]] = {
    "top_k": (-1,), "repetition_penalty": (1,), "length_penalty": (1,), "tool_choice": ("auto", "none"),
    "function_call": ("auto", "none"), "response_format": ({"type": "text"},), "modalities": (["text"],),
    "skip_special_tokens": (True,), "spaces_between_special_tokens": (True,),
}  # fmt: skip
"""Values of other fields that change no answer, besides what is empty, 0 or false."""


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
        for name, value in body.items():
            if name not in _TAKEN and value and value not in _NEUTRAL.get(name, ()):
                text = f"{name[:60]}: {str(value)[:40]} is not supported by this model"
                raise ApiError(400, text, "unsupported_parameter", name[:60])
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
