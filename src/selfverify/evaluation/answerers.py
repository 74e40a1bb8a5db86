"""Answerers of the problems of an evaluation or a filter: a policy here, or a model behind a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch

from selfverify.core import ranks
from selfverify.core.config import EvaluationConfig, SamplingConfig
from selfverify.core.errors import ConfigError, ServerError
from selfverify.core.jsonl_store import Row
from selfverify.core.policy_config import PolicyConfig, is_served
from selfverify.core.problem import Problem
from selfverify.core.tags import SCORE_TAG
from selfverify.evaluation.extraction import SELF, Extractor, make_extractor
from selfverify.evaluation.samples import ResumableBatches
from selfverify.policy.loading import Loaded, load_structure
from selfverify.policy.policy import Policy
from selfverify.rollouts.policy_sampler import PolicySampler
from selfverify.rollouts.rollout import OpenEpisode, Rollout, rollout
from selfverify.rollouts.score_reading import read_rollout_scores
from selfverify.tasks.base import Task

if TYPE_CHECKING:
    from selfverify.core.config import RolloutLimits


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AskedProblems:
    """The questions to an answerer.

    Args:
        task: Opens the conversations and judges answers.
        problems: The problems by index.
        seeds: Their seeds by index.
        sampling: Group size, temperature; ``max_new_tokens`` is each turn's limit.
        begin: Begins each conversation.
        limits: How long they may get; None is as the task says.
        store: Beside which images of conversations are written; None writes none.
        scores: Whether the scores behind answers are read in all ways, of a server by the probabilities of
            tokens.
    """

    task: Task
    problems: Mapping[int, Problem]
    seeds: Mapping[int, int]
    sampling: SamplingConfig
    begin: OpenEpisode
    limits: RolloutLimits | None
    store: Path | None = None
    scores: bool = True


MakeRows = Callable[[Sequence[int], Rollout], list[Row]]
"""Makes the rows of the problems with these indices from a rollout about them."""


class PolicyAnswerer:
    """Answers with a policy of this process."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.encoder, self.image_backend = policy, policy.encoder, policy.image_backend

    def prepare(self, task: Task, config: EvaluationConfig) -> Extractor | None:
        """Tell a task who answers, and return the second reader of answers that a configuration names."""
        task.set_coordinate_space(self.policy.coordinate_space)
        task.set_policy(self.policy)
        name, own = config.extractor, self.policy
        return None if name is None else make_extractor(name, own.config, own)

    def weights(self) -> str:
        """Return the fingerprint of the weights. All processes have to call this."""
        return self.whole(self.policy.fingerprint)

    def whole(self, work: Callable[[], T]) -> T:
        """Do some work with whole weights."""
        return self.policy.whole(work)

    def answer(self, asked: AskedProblems, sweep: ResumableBatches[Row], make_rows: MakeRows[Row]) -> None:
        """Answer a share of a sweep as one batch, and store the rows. All processes have to call this."""

        def answered() -> list[Row]:
            if not asked.problems:
                return []
            problems, seeds = [*asked.problems.values()], [asked.seeds[index] for index in asked.problems]
            sampler, size = PolicySampler(self.policy, asked.sampling), asked.sampling.group_size
            begin, limits = asked.begin, asked.limits
            made = rollout(sampler, asked.task, problems, seeds, size, open_episode=begin, limits=limits)
            if asked.scores:
                read_rollout_scores(self.policy, made, as_written=True)
            return make_rows([*asked.problems], made)

        sweep.store(ranks.everywhere(answered))


class ServerAnswerer:
    """Asks an OpenAI-compatible server. Each problem is stored as soon as all its answers are there.

    `weights` is the model's address: a change of the server's weights is not seen here.

    Args:
        config: Its ``path`` is ``URL#MODEL``; ``server`` says how it is asked.

    Raises:
        ConfigError: The path is none of a server, several processes were started, or what asks servers is not
            installed.
    """

    encoder: None = None
    """Problems are not encoded here, so that none is refused for it."""
    image_backend = ""
    """The server prepares images."""

    def __init__(self, config: PolicyConfig) -> None:
        from selfverify.clients.openai_client import ModelOnServer

        if ranks.count() > 1:
            raise ConfigError(f"policy.path={config.path}: one process asks a server; start it alone")
        self.config, how = config, config.server
        self.served = ModelOnServer.of(config.path, "policy.path", how.timeout_s, how.tries)

    def prepare(self, task: Task, config: EvaluationConfig) -> Extractor | None:
        """Tell a task who answers, and return the second reader of answers that a configuration names.

        Raises:
            ConfigError: The answers are to be read again by the server's model, or scores as the likeliest,
                which a server does not say; or see `introduce`.
        """
        if config.score == "greedy":
            raise ConfigError(
                "evaluation.score=greedy cannot be read from a server; say soft (it needs the probabilities "
                "of tokens) or sampled"
            )
        if config.extractor == SELF:
            raise ConfigError("evaluation.extractor=self: a served model reads nothing again; name a model")
        self.introduce(task)
        return None if config.extractor is None else make_extractor(config.extractor, self.config)

    def introduce(self, task: Task) -> None:
        """Tell a task how the served model writes places in images.

        Raises:
            ConfigError: It is not known how places in images are written, and the task has such.
        """
        if task.writes_places or self.config.server.like is not None:
            task.set_coordinate_space(self.space)

    def weights(self) -> str:
        """Return the model's address."""
        return self.served.address

    def whole(self, work: Callable[[], T]) -> T:
        """Do some work; there are no weights here."""
        return work()

    def answer(self, asked: AskedProblems, sweep: ResumableBatches[Row], make_rows: MakeRows[Row]) -> None:
        """Answer a share of a sweep, and store the rows. Problems that have a row are not asked again."""
        from selfverify.rollouts.server_sampler import ServerSampler, stored

        left = {index: problem for index, problem in asked.problems.items() if index not in sweep.rows}
        indices = [*left]
        sampling, tags = asked.sampling, asked.task.tags
        fields = {
            "model": self.served.model,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_new_tokens,
        }
        sampler = ServerSampler(
            self.served.server,
            fields,
            at_once=self.config.server.concurrent,
            logprobs=True,
            read_scores=asked.scores and SCORE_TAG in tags,
            thinks="think" in tags,
        )
        problems, seeds, size = [*left.values()], [asked.seeds[i] for i in indices], sampling.group_size
        try:
            rollout(
                sampler, asked.task, problems, seeds, size, open_episode=asked.begin, limits=asked.limits,
                on_group=lambda b, group: sweep.store(make_rows([indices[b]], group)),
            )  # fmt: skip
        except ServerError as error:
            raise stored(error) from None

    @cached_property
    def _like(self) -> Loaded:
        config = self.config.model_copy(update={"path": self.config.server.like, "device": "meta"})
        with torch.device("meta"):
            return load_structure(config)

    def space(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the coordinate space (`Policy.coordinate_space`) of the model that ``policy.server.like``
        names.

        Raises:
            ConfigError: It names none.
        """
        if self.config.server.like is None:
            raise ConfigError(
                "this task has places in images, and families of models write them in different units: name "
                "a model of the served one's family with policy.server.like=FOLDER_OR_ID"
            )
        loaded = self._like
        return loaded.family.coordinate_space(loaded.model, loaded.image_processor, size)


def make_answerer(config: PolicyConfig) -> Policy | ServerAnswerer:
    """Load a policy, or make what asks the server that the path names."""
    return ServerAnswerer(config) if is_served(config.path) else Policy.load(config)


Answerer = PolicyAnswerer | ServerAnswerer
"""Something that answers problems, with a text that tells its answers from those of others."""


def as_answerer(policy: Policy | Answerer) -> Answerer:
    """Return what answers with a policy, or what answers already."""
    return PolicyAnswerer(policy) if isinstance(policy, Policy) else policy
