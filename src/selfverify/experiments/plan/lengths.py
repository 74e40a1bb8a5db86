"""How long a step's prompts and conversations are: a few problems of the recipe's, and its limits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import cycle, islice

from selfverify.core.episode import Observation
from selfverify.core.problem import Problem
from selfverify.experiments.recipe import Recipe
from selfverify.experiments.run import recipe_task
from selfverify.methods.base import Method
from selfverify.policy.encoding import Prompt
from selfverify.policy.observation_encoding import ReplyEncoder
from selfverify.policy.policy import Policy
from selfverify.tasks.base import user_turn

MOST = 8
"""The most problems that are drawn; a larger step repeats them."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """The prompts and conversations of one step on one GPU.

    Args:
        prompts: The B prompts; no two images are the same.
        problems: The problems that were drawn, at most `MOST`.
        group_size: The number of conversations per prompt (G).
        trained: Of each token behind a prompt, at the longest, whether the policy has said it.
        heard: How many tokens an environment says at a time.
        sampled: How many of them are sampled, 0 where nothing is.
        stated: Where the lengths come from, in words for people.
    """

    prompts: list[Prompt]
    problems: list[Problem]
    group_size: int
    trained: list[bool]
    heard: int
    sampled: int
    stated: str

    @property
    def shared_tokens(self) -> int:
        """The tokens forwarded in one pass when prompts are shared: the sum of P + G R."""
        own = self.group_size * len(self.trained)
        return sum(len(prompt.ids) + own for prompt in self.prompts)

    @property
    def plain_tokens(self) -> int:
        """The tokens forwarded in one pass when prompts are not shared: the sum of G (P + R)."""
        return sum(self.group_size * (len(prompt.ids) + len(self.trained)) for prompt in self.prompts)

    @property
    def image_tokens(self) -> int:
        """The image placeholders in all prompts."""
        return sum(image.placeholders for prompt in self.prompts for image in prompt.images)


def lengths_of(recipe: Recipe, method: Method, policy: Policy, groups: int, heard: int | None) -> Lengths:
    """Draw a few problems, and let conversations go on to the recipe's limits.

    Args:
        recipe: The recipe.
        method: Its method.
        policy: Encodes the prompts.
        groups: How many problems the step has.
        heard: The tokens of what an environment says at a time.

    Raises:
        DataError: The task cannot make its problems.
    """
    task = recipe_task(recipe)
    task.set_coordinate_space(policy.coordinate_space)
    problems = [task.problem("train", recipe.seed, i) for i in range(min(groups, MOST))]
    drawn = [policy.encoder.prompt(problem) for problem in problems]
    prompts = [
        replace(prompt, images=[replace(image, key=f"{n}/{image.key}") for image in prompt.images])
        for n, prompt in enumerate(islice(cycle(drawn), groups))
    ]
    stated = f"{len(drawn)} problems of {task.name} were drawn"
    if not samples(recipe, method):
        return Lengths(prompts, problems, 1, [], 0, 0, stated)
    limits = method.limits or task.limits
    begins = any(problem.environment_begins for problem in problems)
    words = recipe.method.options.get("second_turn")
    if heard is None and words is not None and not begins:
        asked = Problem("planned", user_turn("", 0))
        heard = len(ReplyEncoder(policy.encoder).encode(asked, Observation(words), 1).tokens)
    stated += f", conversations go on to sampling.max_new_tokens in each of {limits.turns} turns"
    if heard is None and (begins or limits.turns > 1):
        stated += ", and what their environment says is NOT counted: give --reply-tokens"
    reply, said = [False] * (heard or 0), [True] * recipe.sampling.max_new_tokens
    trained = [*(reply if begins else []), *(said + reply) * (limits.turns - 1), *said]
    if limits.tokens is not None:
        trained = trained[: max(limits.tokens - min(len(prompt.ids) for prompt in prompts), 1)]
    group = recipe.sampling.group_size
    return Lengths(prompts, problems, group, trained, len(reply), sum(trained), stated)


def samples(recipe: Recipe, method: Method) -> bool:
    """Whether the method samples. Of fine-tuning methods, only that of second turns does."""
    return method.measured or "second_turn" in recipe.method.options
