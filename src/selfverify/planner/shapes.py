"""The prompts of one step: the recipe's own, or made to a given length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

import torch
from PIL import Image

from selfverify.core.episode import Reply
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.problem import Problem
from selfverify.experiments.recipe import Recipe
from selfverify.experiments.registry import make_task
from selfverify.planner.plan_settings import PlanSettings
from selfverify.policy.encoding import Prompt
from selfverify.policy.policy import Policy
from selfverify.policy.replies import ReplyEncoder
from selfverify.tasks.base import user_turn

MOST = 64
"""The most problems that are made; a larger step repeats them."""
_WORD = " the"
_TRIES = 12


@dataclass(frozen=True, slots=True)
class Shapes:
    """The prompts and responses of one step on one GPU.

    Args:
        prompts: The B prompts.
        problems: The problems that the prompts were made from; none when their lengths were given.
        group_size: The number of responses per prompt (G).
        response_tokens: The tokens of each response (R).
        stated: Where the lengths come from, in words for people.
    """

    prompts: list[Prompt]
    problems: list[Problem]
    group_size: int
    response_tokens: int
    stated: str

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
        """The image placeholders in all prompts."""
        return sum(image.placeholders for prompt in self.prompts for image in prompt.images)


def shapes_of(recipe: Recipe, policy: Policy, groups: int, lengths: PlanSettings) -> Shapes:
    """Return the prompts of the first ``groups`` problems, encoded by the real tokenizer and image processor.

    Raises:
        ConfigError: The given lengths cannot be made.
        DataError: The task cannot make its problems.
    """
    problems: list[Problem] = []
    if lengths.prompt_tokens is None and lengths.image_tokens is None:
        task = make_task(recipe.task.name, **recipe.task.options)
        task.use_space(policy.coordinate_space)
        problems = [task.problem("train", recipe.seed, i) for i in range(min(groups, MOST))]
        prompts = [policy.encoder.prompt(problem) for problem in problems]
        where = f"{len(problems)} problems of {recipe.task.name}"
    else:
        prompts, where = [_made(policy, lengths)], "given"
    response, allowed = recipe.sampling.max_new_tokens, "all as long as sampling.max_new_tokens allows"
    if (words := recipe.method.options.get("second_turn")) is not None:
        asked = Problem("planned", user_turn(_WORD, images=0))
        response = 2 * response + len(ReplyEncoder(policy.encoder).encode(asked, Reply(words), 1).tokens)
        allowed = "two turns, " + allowed
    stated = f"prompts: {where}; responses: " + ("given" if lengths.response_tokens else allowed)
    response = lengths.response_tokens or response
    return Shapes(
        _repeated(prompts, groups),
        list(islice(cycle(problems), groups)),
        recipe.sampling.group_size,
        response,
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
    family, model = policy.loaded.family, policy.model
    if lengths.image_tokens and family.placeholder(model) is None:
        raise ConfigError(f"--image-tokens: the model at {policy.config.path!r} reads text only")
    images = [_image(policy, lengths.image_tokens)] if lengths.image_tokens else []
    parts = [*({"type": "image"} for _ in images), {"type": "text", "text": _WORD}]
    try:
        prompt = policy.encoder.prompt(Problem("planned", [{"role": "user", "content": parts}], images))
    except DataError as error:
        raise ConfigError(f"--image-tokens {lengths.image_tokens}: {error}") from error
    missing = (lengths.prompt_tokens or len(prompt.ids)) - len(prompt.ids)
    if missing < 0:
        raise ConfigError(
            f"--prompt-tokens {lengths.prompt_tokens}: the chat template and the image alone take "
            f"{len(prompt.ids)}"
        )
    word = policy.tokenizer(_WORD, add_special_tokens=False)["input_ids"][0]
    place = (prompt.ids == word).nonzero()[-1, 0]
    ids = torch.cat([prompt.ids[:place], prompt.ids[place].repeat(missing), prompt.ids[place:]])
    positions = family.positions(model, ids, prompt.images)
    return replace(prompt, ids=ids, positions=positions, next_position=int(positions.max()) + 1)


def _image(policy: Policy, tokens: int) -> Image.Image:
    """Return a square image that takes about ``tokens`` tokens."""
    side, best = 28 * tokens**0.5, None
    for _ in range(_TRIES):
        image = Image.new("RGB", (max(round(side), 1),) * 2)
        found = policy.encoder.image(image, "planned").placeholders
        if best is None or abs(found - tokens) < abs(best[0] - tokens):
            best = (found, image)
        if found == tokens:
            break
        side *= (tokens / found) ** 0.5
    assert best is not None
    return best[1]
