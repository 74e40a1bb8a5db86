"""verl's rollouts: its loader's rows, and the agent loop that holds a conversation with any `Episode`.

A conversation is our own `rollout` of one; of verl it takes the servers that sample.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any
from uuid import uuid4

import torch
from torch.utils.data import Dataset
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, register

from selfverify.core.config import RolloutLimits, SamplingConfig
from selfverify.core.errors import DataError
from selfverify.core.problem import Problem, Split
from selfverify.core.trajectory import OBSERVATION, Finish, Segment, Trajectory
from selfverify.experiments.recipe import Recipe, recipe_task
from selfverify.experiments.registry import make_method
from selfverify.integrations.verl.streams import FIELD, Row
from selfverify.policy.decoding import Sample, derived_seed
from selfverify.policy.encoding import Prompt
from selfverify.policy.kv_sessions import KVSession
from selfverify.policy.loading import load_structure
from selfverify.policy.policy import Policy
from selfverify.policy.recomputing_sessions import RecomputingSession
from selfverify.rollouts.policy_sampler import PolicySampler
from selfverify.rollouts.rollout import OpenEpisode, opening, rollout
from selfverify.tasks.base import Task
from selfverify.trainer.rollout_source import FilteredProblems

logger = logging.getLogger(__name__)

TRAIN = "train"
MANY = 1024
"""Conversations that a process holds at the same time where nothing bounds them."""


class ProblemDataset(Dataset[dict[str, Any]]):
    """The problems of a split, in order.

    Args:
        data_files: One text ``SPLIT/COUNT``, which stands in the place of a file.
        about: Not used: prompts are written in the agent loop.
    """

    def __init__(self, data_files: Sequence[str], **about: Any) -> None:
        self.split, _, count = data_files[0].partition("/")
        self.count = int(count)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return what verl hands to the agent loop."""
        return {
            "raw_prompt": [{"role": "user", "content": ""}],
            "dummy_tensor": torch.tensor([0], dtype=torch.uint8),
            "data_source": self.split,
            "index": index,
            "reward_model": {"style": "rule", "ground_truth": ""},
        }


class LoopResources:
    """Tasks with their data, and a policy without weights, which all conversations of a process share.

    Where a task's episodes have no threads, one of them runs at a time, but while it waits for a server.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.method = recipe, make_method(recipe.method.name, **recipe.method.options)
        # Where the tower learns, no image passes through it to be encoded; caches are not for threads.
        changed = {"device": "meta", "lora": None, "train_vision": True, "pixel_cache_mb": 0}
        config = recipe.policy.model_copy(update=changed)
        with torch.device("meta"):
            self.policy = Policy(load_structure(config), config)
        self.stop, self.never = sorted(self.policy.stop_tokens), {*self.policy.suppressed_tokens}
        self.task = recipe_task(recipe)
        self.exam = recipe_task(recipe, measured=True) if recipe.evaluation_task else self.task
        for task in (self.task, self.exam):
            task.set_coordinate_space(self.policy.coordinate_space)
        keep = recipe.learner.keep
        self.kept = None if keep is None else FilteredProblems(keep, self.task)
        self.threads = ThreadPoolExecutor(self.task.limits.concurrent or MANY)
        self.lock = threading.Lock()

    def problem(self, split: Split, index: int) -> Problem:
        """Return the problem that our own trainer, or our own evaluation, has at this place.

        Raises:
            DataError: It cannot be made.
        """
        if split != TRAIN:
            return self.exam.problem(split, 0, index)
        if self.kept is not None:
            return self.kept.problem(self.recipe.seed, index)
        return self.method.problem(self.task, self.recipe.seed, index)

    def opening(self, split: Split) -> tuple[Task, OpenEpisode, RolloutLimits]:
        """Return the task of a split, how its conversations begin, and how long they may get."""
        if split != TRAIN:
            evaluation = self.recipe.evaluation
            return self.exam, *opening(self.exam, evaluation.second_turn, evaluation.retries)
        return self.task, partial(self.method.open, self.task), self.method.limits or self.task.limits

    def side(self, problem: Problem, number: int, longest: tuple[int, int]) -> tuple[Prompt, Trajectory]:
        """Return the prompt of a pair and one of its sides; ``longest`` as in `ServerTurns`.

        Raises:
            DataError: The pair cannot be used.
        """
        rolled = self.method.rollout(self.policy, self.task, [problem], [0], self.recipe.sampling)
        [prompt], [group] = rolled.prompts, rolled.groups
        told = max(len(trajectory.tokens) for trajectory in group.trajectories)
        if len(prompt.ids) > longest[0] or told > longest[1]:
            raise DataError(
                f"pair {problem.id}: {len(prompt.ids)} tokens and {told} behind them; engine.prompt_tokens="
                f"{longest[0]}, and {longest[1]} may follow (engine.response_tokens)"
            )
        return prompt, group.trajectories[number]


@cache
def resources_of(text: str) -> LoopResources:
    """Return what the conversations of this process share; ``text`` is the recipe as JSON."""
    return LoopResources(Recipe.model_validate_json(text))


class ServerTurns(PolicySampler):
    """Takes the turns of one conversation from verl's servers.

    Args:
        shared: Encodes.
        ask: Lets a server go on with tokens and images for so many tokens at most.
        longest: The most tokens of a prompt, and of what follows it.
    """

    def __init__(self, shared: LoopResources, ask: Callable[..., Sample], longest: tuple[int, int]) -> None:
        super().__init__(shared.policy, shared.recipe.sampling)
        self.ask, self.longest = ask, longest

    def _begin(
        self, problems: Sequence[Problem], seeds: Sequence[int], group_size: int, limits: RolloutLimits
    ) -> KVSession:
        prompts = self.policy.encode(problems)
        length, (prompted, answered) = len(prompts[0].ids), self.longest
        self.prompts, room = prompts, min(self._room or length + answered, length + answered)
        self._room = room
        if length > min(prompted, room - 1):
            raise DataError(
                f"problem {problems[0].id}: a prompt of {length} tokens; engine.prompt_tokens={prompted}, "
                f"and a conversation may have {room}"
            )

        def sample(prompts: Sequence[Prompt], sampling: SamplingConfig, **about: Any) -> list[list[Sample]]:
            limits = [min(sampling.max_new_tokens, room - len(prompt.ids)) for prompt in prompts]
            asked = zip(prompts, limits, strict=True)
            return [[self.ask(prompt.ids.tolist(), prompt.pictures, limit)] for prompt, limit in asked]

        one, extend = self.sampling.model_copy(update={"group_size": 1}), self.policy.encoder.extended
        return RecomputingSession(sample, self.policy.logprobs, prompts, seeds, one, extend)


@register("selfverify")
class EpisodeLoop(AgentLoopBase):
    """Answers once, answers again or acts in an environment, as the method's episode has it.

    A conversation whose episode fails is lost: no token of it is learnt, and it is counted. A problem that
    cannot be used is skipped and counted. Any other error ends the run when the step's credit is asked for.
    """

    def __init__(self, *given: Any, hf_model_type: str | None = None, **named: Any) -> None:
        super().__init__(*given, **named)  # no family's builder of tokens, whose marks may be missing

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """See verl's ``AgentLoopBase``."""
        shared, events = resources_of(self.config.algorithm.selfverify), asyncio.get_running_loop()
        split, index = kwargs["data_source"], int(kwargs["index"])
        task, begin, limits = shared.opening(split)
        request, versions, session = uuid4().hex, list[int](), int(kwargs["session_id"])
        lock = threading.Lock() if limits.step_threads else shared.lock

        def ask(ids: list[int], images: list[Any], limit: int) -> Sample:
            params = sampling_params | {"max_tokens": limit, "stop_token_ids": shared.stop}
            about: dict[str, Any] = {"request_id": request, "prompt_ids": ids, "image_data": images or None}
            if self.mm_processor_kwargs:
                about["mm_processor_kwargs"] = dict(self.mm_processor_kwargs)
            call = self.server_manager.generate(sampling_params=params, **about)
            lock.release()
            try:
                out = asyncio.run_coroutine_threadsafe(call, events).result()
            finally:
                lock.acquire()
            spans = [out.extra_fields.get(f"{end}_global_steps") for end in ("min", "max")]
            versions.extend(version for version in spans if version is not None)
            if not out.token_ids or out.stop_reason == "aborted":
                return Sample([], [], Finish.ERROR)  # what the engine has given up
            # A mark of an image, which stands for no image here, cuts a turn off.
            cut = next((n for n, token in enumerate(out.token_ids) if token in shared.never), None)
            tokens, logprobs = list(out.token_ids)[:cut], list(out.log_probs)[:cut]
            ended = bool(tokens) and tokens[-1] in shared.stop
            return Sample(tokens, logprobs, Finish.STOP if ended else Finish.LENGTH)

        longest = self.rollout_config.prompt_length, self.rollout_config.response_length
        sampler = ServerTurns(shared, ask, longest)

        def hold() -> tuple[Prompt, Trajectory]:
            with shared.lock:
                problem = shared.problem(split, index)
            if shared.method.objective == "pairwise":
                with lock:
                    return shared.side(problem, session, longest)
            seed = derived_seed(shared.recipe.seed, index, session)
            with lock:
                rolled = rollout(sampler, task, [problem], [seed], 1, open_episode=begin, limits=limits)
            return sampler.prompts[0], rolled.groups[0].trajectories[0]

        faults: dict[str, str] = {}
        try:
            begun, trajectory = await events.run_in_executor(shared.threads, hold)
        except Exception as error:
            kind = "skipped" if isinstance(error, DataError) else "fatal"
            faults[kind] = f"{type(error).__name__}: {error}"
            trajectory = Trajectory([Segment(OBSERVATION, [], author="environment", finish=Finish.ERROR)])
            logger.warning("%s problem %d: %s", split, index, faults)
        segments, filler = trajectory.segments, [self.tokenizer.eos_token_id]
        prompt, images = filler, list[Any]()
        if not faults:
            prompt = begun.ids.tolist()
            images = [*begun.pictures, *(image for s in segments for image in s.images)]
        versions = versions or [int(kwargs["global_steps"]) - 1]  # where nothing was sampled
        correct, lost = float(trajectory.rewards.get("correct", 0.0)), float(trajectory.lost)
        return AgentLoopOutput(
            prompt_ids=prompt,
            response_ids=trajectory.tokens or filler,
            response_mask=[int(s.author == "policy") for s in segments for _ in s.tokens] or [0],
            response_logprobs=trajectory.logprobs or [0.0] * max(len(trajectory.tokens), 1),
            reward_score=correct,
            num_turns=1 + sum(s.finish is not None for s in segments),
            metrics={},
            multi_modal_data={"images": images} if images else {},
            extra_fields={
                FIELD: Row(trajectory, session, **faults),
                "reward_extra_info": {"acc": correct, "lost": lost, **trajectory.rewards},
                "min_global_steps": min(versions),
                "max_global_steps": max(versions),
            },
        )
