"""The prompts of one step: the recipe's own, or made to a given length."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import cycle, islice

import torch

from selfverify.core.errors import ConfigError, DataError, SelfVerifyError
from selfverify.core.problem import Problem
from selfverify.experiments.recipe import Recipe
from selfverify.experiments.registry import make_task
from selfverify.planner.conversation import WORD, Conversation, conversation_of, lengthened, sized_image
from selfverify.planner.plan_settings import PlanSettings
from selfverify.policy.encoding import Prompt
from selfverify.policy.policy import Policy

MOST = 64
"""The most problems that are made; a larger step repeats them."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """The prompts and responses of one step on one GPU.

    Args:
        prompts: The B prompts.
        problems: The problems that the prompts were made from; none when their lengths were given.
        group_size: The number of responses per prompt (G).
        conversation: What follows each prompt; of one turn it is a response.
        stated: Where the lengths come from, in words for people.
    """

    prompts: list[Prompt]
    problems: list[Problem]
    group_size: int
    conversation: Conversation
    stated: str

    @property
    def response_tokens(self) -> int:
        """The tokens of each response (R), those of replies included."""
        return len(self.conversation.tokens)

    @property
    def shared_tokens(self) -> int:
        """The tokens forwarded in one pass when prompts are shared: the sum of P + G R."""
        own = self.group_size * self.response_tokens
        return sum(len(prompt.ids) + own for prompt in self.prompts)

    @property
    def plain_tokens(self) -> int:
        """The tokens forwarded in one pass when prompts are not shared: the sum of G (P + R)."""
        return sum(self.group_size * (len(prompt.ids) + self.response_tokens) for prompt in self.prompts)

    @property
    def image_tokens(self) -> int:
        """The image placeholders in all prompts and replies."""
        talk = self.conversation
        reply = talk.replies * sum(image.placeholders for image in talk.reply.images)
        own = sum(image.placeholders for prompt in self.prompts for image in prompt.images)
        return own + self.group_size * len(self.prompts) * reply


def shapes_of(recipe: Recipe, policy: Policy, groups: int, lengths: PlanSettings) -> Shapes:
    """Return the prompts of the first ``groups`` problems, encoded by the real tokenizer and image processor.

    Raises:
        ConfigError: The given lengths cannot be made.
        DataError: The task cannot make its problems.
    """
    problems: list[Problem] = []
    begins = False
    if lengths.prompt_tokens is None and lengths.image_tokens is None:
        task = make_task(recipe.task.name, **recipe.task.options)
        task.use_space(policy.coordinate_space)
        problems = [task.problem("train", recipe.seed, i) for i in range(min(groups, MOST))]
        prompts = [policy.encoder.prompt(problem) for problem in problems]
        begins = any(problem.environment_begins for problem in problems)
        where = f"{len(problems)} problems of {recipe.task.name}"
    else:
        prompts, where = [_made(policy, lengths)], "given"
        # Whoever gives lengths may not have the task's data.
        with suppress(SelfVerifyError):
            task = make_task(recipe.task.name, **recipe.task.options)
            begins = task.problem("train", recipe.seed, 0).environment_begins
    conversation, allowed = conversation_of(recipe, policy, lengths, begins)
    stated = f"prompts: {where}; responses: {allowed}"
    return Shapes(
        _repeated(prompts, groups),
        list(islice(cycle(problems), groups)),
        recipe.sampling.group_size,
        conversation,
        stated,
    )


def _repeated(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """Return ``count`` prompts whose images are all different, as in a real step."""
    return [
        replace(prompt, images=[replace(image, key=f"{n}/{image.key}") for image in prompt.images])
        if n >= len(prompts)
        else prompt
        for n, prompt in enumerate(islice(cycle(prompts), count))
    ]


def _made(policy: Policy, lengths: PlanSettings) -> Prompt:
    """Return a prompt of exactly ``prompt_tokens`` tokens, in which a word is repeated."""
    images = []
    if lengths.image_tokens:
        images = [sized_image(policy, lengths.image_tokens, "--image-tokens")]
    parts = [*({"type": "image"} for _ in images), {"type": "text", "text": WORD}]
    try:
        prompt = policy.encoder.prompt(Problem("planned", [{"role": "user", "content": parts}], images))
    except DataError as error:
        raise ConfigError(f"--image-tokens {lengths.image_tokens}: {error}") from error
    ids = torch.tensor(lengthened(policy, prompt.ids.tolist(), lengths.prompt_tokens, "--prompt-tokens"))
    positions = policy.loaded.family.positions(policy.model, ids, prompt.images)
    return replace(prompt, ids=ids, positions=positions, next_position=int(positions.max()) + 1)
