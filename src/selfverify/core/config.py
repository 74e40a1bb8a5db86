"""The base of all settings, and the settings of sampling, limits, evaluations and stopping.

`Config` is the base of all settings: those of recipes, and those that become options of commands. They name
servers by their addresses (`checked_address`), and tasks, recipes, policies and sources that installed
distributions bring along (`distributions`). Of a recipe's blocks these stand here:

- `SamplingConfig`: how trajectories are drawn in training, and by which engine (`VLLMConfig`)
- `RolloutLimits`, `EpisodeConfig`: how long conversations may get, in turns, tokens and time
- `EvaluationConfig`: which problems an evaluation asks, how many samples it draws, and how
- `StoppingConfig`: the pairs of a verifier that ends visual reasoning, and what ε is chosen for
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import entry_points
from pathlib import PurePath
from types import ModuleType
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from selfverify.core.errors import ConfigError


class Config(BaseModel):
    """A pydantic model that forbids unknown keys, does not change, and whose numbers are finite.

    The text below a field describes it to people: in help, in `selfverify methods` and in the reference.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)


Seed = Annotated[int, Field(ge=0, lt=2**63)]
"""A seed that every generator takes."""


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, PurePath) else value


PathText = Annotated[str, BeforeValidator(_as_text)]
"""A path, which stays a text; given as a `pathlib.Path` it becomes one."""


def checked_address(url: str, example: str, key_goes: str) -> str:
    """Return an http or https address, without a slash at its end.

    Addresses are printed and logged, so none may hold a password or a key.

    Args:
        url: The address as it was given.
        example: An address to show in the message.
        key_goes: Where a key is given instead.

    Raises:
        ConfigError: It is no such address, or holds a user, a password or a query. The message quotes nothing
            that may be one of these.
    """
    shown = "the address" if {"@", "?", "#"} & set(url) else repr(url[:200])
    wrong = ConfigError(f"{shown} is no address of a server; one looks like {example}")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # reading the port checks it
    except ValueError:
        raise wrong from None
    fits = parts.scheme in ("http", "https") and url.isprintable() and " " not in url
    if not fits or not host or (":" in host and "[" not in parts.netloc):
        raise wrong
    if "@" in parts.netloc or parts.query or parts.fragment:
        text = f"a key or a password does not belong into the address, which is printed; give it {key_goes}"
        raise ConfigError(f"{parts.scheme}://{host}: {text}")
    return url.rstrip("/")


logger = logging.getLogger(__name__)

T = TypeVar("T")

GROUP = "selfverify.environments"
_OURS = {"phone": "phone", "browser": "miniwob"}
"""Our own distributions, in ``environments/``, by a word that is in the names of all that they bring."""


@cache
def distributions() -> dict[str, ModuleType]:
    """Return the modules of installed distributions by the names of their entry points in `GROUP`.

    A module has ``TASKS``, the classes of its tasks, ``RECIPES``, the folder of its recipes, ``WEIGHTS``,
    whose subfolders are policies (``builtin:NAME``), and ``SOURCES``, kinds of sources of environments with
    their classes (`SourceConfig`). Each may be missing.

    One that cannot be imported is left out, and a warning names it: the others can be used all the same.
    """
    found: dict[str, ModuleType] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            found[entry.name] = entry.load()
        except Exception as error:
            logger.warning(
                "the distribution %s (%s) cannot be used: %s: %s; install it anew, or remove it",
                entry.name, entry.value, type(error).__name__, error,
            )  # fmt: skip
    return found


def with_distributions(
    attribute: str, what: str, own: Any, named: Callable[[Any], Iterable[tuple[str, T]]]
) -> dict[str, T]:
    """Return by name what the package has of a kind, and what installed distributions bring along.

    Args:
        attribute: Where a distribution's module has it: ``TASKS``, ``RECIPES``, ``WEIGHTS`` or ``SOURCES``.
        what: The kind, as errors name it.
        own: What the package's would be.
        named: Gives the things in such an attribute, each with its name.

    Raises:
        ConfigError: Two of them have one name.
    """
    found: dict[str, T] = {}
    owners: dict[str, str] = {}
    places = {f"the distribution {name}": vars(module) for name, module in distributions().items()}
    for owner, place in {"selfverify": {attribute: own}, **places}.items():
        for name, thing in named(place[attribute]) if attribute in place else ():
            if name in found:
                both = f"{owners[name]} and {owner}"
                raise ConfigError(f"{both} both have a {what} {name!r}; remove one of them")
            found[name], owners[name] = thing, owner
    return found


def how_to_get(name: str) -> str:
    """Return in a sentence how to install what brings a task, recipe or policy; empty where that is not
    known.

    Where the distribution is installed, it has nothing of this name, and nothing is said.
    """
    for word, owner in _OURS.items():
        if word in name.split("-") and owner not in distributions():
            return (
                f"{name!r} comes with a distribution of its own, which is not installed: pip install "
                f"./environments/{owner} in a checkout"
            )
    return ""


class VLLMConfig(Config):
    """A server that `vllm serve` started, which samples in training through TRL's `VLLMGeneration`."""

    server_base_url: str = Field(pattern=r"^https?://")
    """The server's address, such as `http://10.0.0.2:8000`."""

    server_timeout_s: float = Field(240.0, gt=0.0)
    """The seconds to wait for it to start."""

    group_port: int = Field(51216, ge=1, le=65535)
    """The port over which new weights are sent."""

    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """The precision in which vLLM computes; null is that of the policy's weights. Another one is faster where
    it is lower, and its samples have other probabilities than the policy's."""


TopP = Annotated[float, Field(gt=0.0, le=1.0)]


class SamplingConfig(Config):
    """How trajectories are sampled during training."""

    group_size: int = Field(8, ge=1)
    """The number of trajectories per problem (the papers' G)."""

    temperature: float = Field(1.0, ge=0.0)
    """Sampling temperature; 0 is greedy."""

    top_p: TopP = 0.99
    """Sample from the likeliest tokens that together hold this probability."""

    max_new_tokens: int = Field(48, ge=1)
    """The most tokens of a turn; a longer turn is cut off and finishes with `length`."""

    engine: Literal["own", "vllm"] = "own"
    """The engine that samples: this library (`own`), or vLLM on a server, which is sent the policy's weights.
    Evaluations within a training sample with `own`; `eval` and `data filter` with this one."""

    vllm: VLLMConfig | None = None
    """Where vLLM is; needed with `engine: vllm` alone."""

    @model_validator(mode="after")
    def _check(self) -> SamplingConfig:
        if (self.engine == "vllm") != (self.vllm is not None):
            raise ValueError(
                "engine: vllm needs vllm.server_base_url, the address that `vllm serve` printed, and "
                "engine: own needs no settings of vllm"
            )
        if self.engine == "vllm" and self.temperature == 0:
            raise ValueError(
                "engine: vllm needs a temperature above 0: a greedy sample has no importance weight"
            )
        return self


class EngineConfig(Config):
    """Another trainer that runs the recipe, such as for full fine-tuning of models of 7B and more."""

    name: Literal["verl"] = "verl"
    """verl >= 0.9.1, < 0.10, in an environment of its own."""

    mode: Literal["sync", "colocate", "async"] = "sync"
    """Sample and learn in turn; sample the next batch ahead on the same GPUs; or sample on GPUs of their
    own."""

    nodes: int = Field(1, ge=1)
    """Machines."""

    gpus_per_node: int = Field(8, ge=1)
    """GPUs of each."""

    prompt_tokens: int = Field(2048, ge=1)
    """The longest prompt, images included."""

    response_tokens: int | None = Field(None, ge=1)
    """The longest conversation behind its prompt, what environments show included; null is `episode.tokens`,
    or `sampling.max_new_tokens` where the model speaks once."""

    shared_prefix: bool = False
    """Forward a prompt once for all its answers, as our own trainer does, in place of flash-attn's rows
    without padding (`use_remove_padding`)."""

    options: dict[str, Any] = {}
    """The engine's own keys with dots, passed as they are; they count last."""


class RolloutLimits(Config):
    """Limits of one rollout's conversations; a recipe changes them by `EpisodeConfig`.

    Args:
        turns: How often the policy speaks in one conversation, at most.
        tokens: Tokens of a conversation, its prompt included, after which it ends as at the end of the
            model's context; None is the context.
        step_threads: Threads on which episodes reply. With 0 they reply one after another in the rollout's
            own thread, and no reply has a deadline.
        step_timeout_s: Seconds that a reply may take on a thread; a conversation whose reply takes longer
            ends with an error. Closing an episode may take as long.
        rollout_timeout_s: Seconds after which a rollout asks for no more replies; its open conversations end
            with an error.
        concurrent: Conversations that a process holds at the same time; the next one begins as soon as one is
            over. For environments of which there are few, such as devices. None is no limit.
        retries: How often a lost conversation is held again. Training never does: the failures of hard tasks
            would be drawn until they succeed.
        hung_threads: Threads that may hang in replies, in one process and over all its rollouts, before the
            run ends. A hung thread cannot be ended; one that comes back is not counted.
    """

    turns: int = Field(30, ge=1)
    tokens: int | None = Field(None, ge=1)
    step_threads: int = Field(0, ge=0)
    step_timeout_s: float = Field(60.0, gt=0)
    rollout_timeout_s: float | None = Field(None, gt=0)
    concurrent: int | None = Field(None, ge=1)
    retries: int = Field(0, ge=0)
    hung_threads: int = Field(16, ge=1)


class EpisodeConfig(Config):
    """A recipe's changes to the limits of its task's conversations; null leaves a limit as it is."""

    turns: int | None = Field(None, ge=1)
    """How often the policy speaks at most."""

    tokens: int | None = Field(None, ge=1)
    """Tokens of a conversation, its prompt included, after which it ends."""

    step_threads: int | None = Field(None, ge=0)
    """Threads on which episodes reply; 0 is none, and no reply has a deadline then."""

    step_timeout_s: float | None = Field(None, gt=0)
    """Seconds that a reply may take on a thread."""

    rollout_timeout_s: float | None = Field(None, gt=0)
    """Seconds after which a rollout asks for no more replies."""

    concurrent: int | None = Field(None, ge=1)
    """Conversations that a process holds at the same time."""

    hung_threads: int | None = Field(None, ge=1)
    """Threads of a process that may hang in replies before a run ends."""

    def changed(self, limits: RolloutLimits) -> RolloutLimits:
        """``limits`` with what is set here in place of theirs."""
        return limits.model_copy(update=self.model_dump(exclude_none=True))


class EvaluationConfig(Config):
    """The settings of an evaluation."""

    problems: int | None = Field(512, ge=1)
    """The number of problems to evaluate: the first ones of the split, fewer where a data file has fewer.
    null means all of a data file."""

    samples: int = Field(8, ge=1)
    """The number of trajectories per problem: the N of best-of-N and majority@N."""

    temperature: float = Field(1.0, ge=0.0)
    """Sampling temperature; 0 is greedy."""

    top_p: TopP = 1.0
    """Sample from the likeliest tokens that together hold this probability."""

    split: Literal["validation", "test"] = "test"
    """The split of held-out problems to use."""

    batch_problems: int = Field(64, ge=1)
    """The number of problems sampled at once. Memory depends on it, and what is sampled only by the rounding
    of sums."""

    on_bad: Literal["refuse", "skip"] = "refuse"
    """Stop at a problem that cannot be made or encoded (its image is damaged), or leave it out, named and
    counted."""

    extractor: str | None = Field(None, min_length=1)
    """The path of a model that looks for the answer in responses which the task's rules cannot read, or
    `self` for the evaluated model. null means the rules alone. Stored samples say who read them."""

    score: Literal["soft", "greedy", "sampled"] = "soft"
    """How all figures read the model's own score: its expectation, the likeliest one, or the one that was
    written, as in the paper. All three are stored, so that the figures can be had again."""

    second_turn: str | None = Field(None, min_length=1)
    """The request that the model gets in a second turn, after its answer; then the second answer counts. null
    means one turn."""

    retries: int = Field(2, ge=0)
    """How often a conversation is held again whose episode failed, as where an environment was lost. One that
    is lost every time counts as wrong; `conversations.lost` is their share."""

    seed: Seed = 1000
    """The seed of the evaluation's sampling; the recipe's own seed does not affect it."""


class StoppingConfig(Config):
    """A verifier of when to stop, made from the policy's own conversations about the recipe's task."""

    problems: int = Field(1000, ge=1)
    """Training problems about which the policy looks."""

    samples: int = Field(4, ge=1)
    """Conversations about each, of which pairs are made."""

    temperature: float = Field(1.0, gt=0)
    """Of these conversations."""

    teacher: str | None = None
    """`URL#MODEL`: who looks in place of the recipe's own policy, and goes on wrongly."""

    shots: str | None = None
    """Examples, of which two are put before each question in words: a file of traces, or `builtin`, those of
    the package."""

    judge: str | None = None
    """`URL#MODEL`: who says whether answers in free words are right, on both sides of pairs; rules say it of
    numbers, choices and single words. Null: wrong ones in free words make no pair."""

    votes: int = Field(1, ge=1)
    """Votes of the judge on each answer; more than half decide."""

    branched: int = Field(0, ge=0)
    """Conversations that go on in earnest from the middle of each right one."""

    induced: int = Field(0, ge=0)
    """Those that are asked to go on wrongly from there (VTS-V §4.2)."""

    hurried: int = Field(1, ge=0)
    """Answers that are asked for in the middle of each right conversation: most are wrong before enough was
    seen, and right with fewer looks behind that."""

    pairs: Literal["wrong", "wrong+wasteful"] = "wrong+wasteful"
    """`wrong`: right against wrong conversations. `wrong+wasteful`: also two right ones, of which the one
    with fewer looks is preferred."""

    rule: Literal["absolute", "signed"] = "signed"
    """Where the verifier ends looking: Δr < ε, or |Δr| < ε (`absolute`)."""

    steps: float | None = Field(None, ge=1)
    """The mean number of steps on validation problems that ε may not exceed."""

    within: float = Field(0.01, ge=0, le=1)
    """Without `steps`: how far below the best accuracy of all ε on validation problems it may be, with the
    fewest steps."""

    @model_validator(mode="after")
    def _servers(self) -> StoppingConfig:
        for name, address in (("teacher", self.teacher), ("judge", self.judge)):
            if address is not None and not all(address.partition("#")):
                raise ValueError(f"{name}: a model behind a server is given as URL#MODEL, not {address!r}")
        if self.samples + self.branched + self.induced + self.hurried < 2:
            raise ValueError("a pair needs two conversations: raise samples, branched, induced or hurried")
        return self

    @property
    def target(self) -> tuple[Literal["steps", "within"], float]:
        """The aim that ε is chosen for."""
        return ("within", self.within) if self.steps is None else ("steps", self.steps)
