"""What each conversation of a step says and hears, at its longest."""

from __future__ import annotations

from dataclasses import dataclass, replace

from PIL import Image

from selfverify.core.episode import Reply
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.experiments.recipe import Recipe
from selfverify.experiments.registry import make_method
from selfverify.experiments.run import recipe_task
from selfverify.methods.base import Method
from selfverify.planner.plan_settings import PlanSettings
from selfverify.policy.continuations import Continuation
from selfverify.policy.families import ImageInput
from selfverify.policy.policy import Policy
from selfverify.policy.replies import ReplyEncoder
from selfverify.tasks.base import user_turn

WORD = " the"
"""What given lengths are filled up with."""
_TRIES = 12


@dataclass(frozen=True, slots=True)
class Conversation:
    """One of a step's conversations.

    Args:
        turns: How often the policy speaks.
        said: The tokens of each of its turns.
        reply: What it hears between two turns.
        begins: Whether it hears as much before the first turn, too (`Episode.begin`).
    """

    turns: int
    said: int
    reply: Continuation
    begins: bool = False

    @property
    def replies(self) -> int:
        """How often something is heard."""
        return self.turns - 1 + self.begins

    @property
    def tokens(self) -> list[int]:
        """All that stands behind the prompt."""
        between = [*self.reply.tokens]
        first = between if self.begins else []
        return [*first, *([0] * self.said + between) * (self.turns - 1), *[0] * self.said]

    @property
    def trained(self) -> list[bool]:
        """Of each of the tokens, whether the policy has said it."""
        heard = [False] * len(self.reply.tokens)
        turn = [True] * self.said + heard
        return [*(heard if self.begins else []), *turn * (self.turns - 1), *[True] * self.said]

    def images(self, name: str) -> list[ImageInput]:
        """The images in all replies of the conversation ``name``; no two are the same."""
        return [i for turn in range(self.replies) for i in self.heard(f"{name}/{turn}").images]

    def heard(self, name: str) -> Continuation:
        """The reply with images of its own."""
        images = [replace(image, key=f"{name}/{image.key}") for image in self.reply.images]
        return replace(self.reply, images=images)


def conversation_of(
    recipe: Recipe, policy: Policy, lengths: PlanSettings, begins: bool
) -> tuple[Conversation, str]:
    """Return the conversations of a recipe, and where their lengths come from, in words for people.

    Args:
        recipe: The recipe.
        policy: Its tokenizer makes the replies.
        lengths: Those that are given.
        begins: Whether environments speak first. What they show counts like a reply.

    Raises:
        ConfigError: The lengths of replies are not known, or cannot be made.
    """
    method = make_method(recipe.method.name, **recipe.method.options)
    turns = (method.limits or recipe_task(recipe).limits).turns
    said = lengths.response_tokens or recipe.sampling.max_new_tokens
    long = "given" if lengths.response_tokens else "all as long as sampling.max_new_tokens allows"
    words = recipe.method.options.get("second_turn")
    given = lengths.reply_tokens is not None or lengths.reply_image_tokens is not None
    if (turns == 1 and not begins) or not samples(recipe, method):
        if given:
            raise ConfigError(
                "--reply-tokens, --reply-image-tokens: the recipe holds no conversations of several turns"
            )
        return Conversation(1, said, Continuation([])), long
    if not given and (begins or words is None):
        shown = "begin with what is shown" if begins else f"have up to {turns} turns"
        raise ConfigError(
            f"conversations of task {recipe.task.name} {shown}, and how long replies "
            "are is not known; give --reply-tokens, and --reply-image-tokens where they show images"
        )
    if words is None or given:
        reply = _made(policy, lengths)
    else:
        reply = ReplyEncoder(policy.encoder).encode(Problem("planned", user_turn(WORD, 0)), Reply(words), 1)
    number = "a turn" if turns == 1 else "two turns" if turns == 2 else f"{turns} turns"
    first = " behind a first screen" if begins else ""
    return Conversation(turns, said, reply, begins), f"{number}{first}, {long}"


def samples(recipe: Recipe, method: Method) -> bool:
    """Whether the method samples. Of fine-tuning methods, only that of second turns does."""
    return method.measured or "second_turn" in recipe.method.options


def _made(policy: Policy, lengths: PlanSettings) -> Continuation:
    """Return a reply of exactly ``reply_tokens`` tokens, in which a word is repeated."""
    images = []
    if lengths.reply_image_tokens:
        images = [sized_image(policy, lengths.reply_image_tokens, "--reply-image-tokens")]
    parts = [*({"type": "image"} for _ in images), {"type": "text", "text": WORD}]
    asked = Problem("planned", user_turn(WORD, 0))
    reply = ReplyEncoder(policy.encoder).encode(asked, Reply(parts, images), 1)
    tokens = lengthened(policy, [*reply.tokens], lengths.reply_tokens, "--reply-tokens")
    return Continuation(tokens, reply.images)


def lengthened(policy: Policy, tokens: list[int], wanted: int | None, option: str) -> list[int]:
    """Repeat the last `WORD` among ``tokens`` until they are as many as ``wanted``; None leaves them.

    Raises:
        ConfigError: They are more already.
    """
    missing = (wanted or len(tokens)) - len(tokens)
    if missing < 0:
        raise ConfigError(f"{option} {wanted}: the chat template and the image alone take {len(tokens)}")
    word = policy.tokenizer(WORD, add_special_tokens=False)["input_ids"][0]
    place = len(tokens) - 1 - tokens[::-1].index(word)
    return [*tokens[:place], *[word] * missing, *tokens[place:]]


def sized_image(policy: Policy, tokens: int, option: str) -> Image.Image:
    """Return a square image that takes about ``tokens`` tokens.

    Raises:
        ConfigError: The model reads text only.
    """
    if policy.loaded.family.placeholder(policy.model) is None:
        raise ConfigError(f"{option}: the model at {policy.config.path!r} reads text only")
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
