"""The judge that a recipe asks for, and the words that agents and judges are given.

The words are files of this package, in `prompts/` of the agents' folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Literal

from jinja2 import Environment as Templates
from jinja2 import PackageLoader, StrictUndefined
from pydantic import Field, model_validator

from selfverify.agents.evidence import Source
from selfverify.agents.judges.case import Judge
from selfverify.agents.judges.config import Flips, JuryConfig, ModelJudgeConfig, OwnJudgeConfig
from selfverify.agents.judges.jury import Jury, RulesJudge, StateJudge
from selfverify.agents.judges.own_judge import OwnJudge, ShortForm
from selfverify.core.config import Config
from selfverify.core.episode import Call
from selfverify.core.errors import ConfigError
from selfverify.tasks.tool_calls import CallForm, written_call

World = Literal["phone", "browser", "tools"]
"""The world that an agent operates; each has a file in `prompts/worlds/`."""

_PLACES = {"phone": "an Android phone", "browser": "a web page", "tools": "an environment through its tools"}


@cache
def hint_names() -> tuple[str, ...]:
    """The kinds of apps of which there are hints, in alphabetical order."""
    folder = files("selfverify.agents") / "prompts" / "hints"
    return tuple(sorted(file.name.removesuffix(".md") for file in folder.iterdir()))


def judge_prompt(hints: Sequence[str] = (), world: World = "phone") -> str:
    """Return the prompt of a judge (the paper's Figures 12 and 13, in words of our own).

    Args:
        hints: Kinds of apps (`hint_names`) of which it is told what is usual.
        world: The world that the agent operates.

    Raises:
        ConfigError: There are no such hints.
    """
    return _filled("judge.md", place=_PLACES[world], hints=_hints(hints))


def agent_prompt(
    source: Source = "chosen",
    react: bool = True,
    first_screen: Literal["asked", "given"] = "asked",
    hints: Sequence[str] = (),
    world: World = "phone",
    calls: CallForm | None = None,
) -> str:
    """Return the prompt of an agent: the 3C principles of §3.3 and Figure 8, in words of our own.

    Args:
        source: The origin of the evidence; principles of choosing are named where the agent chooses.
        react: Whether the agent says before each call why it makes it (ReAct), or calls only.
        first_screen: Whether the agent asks for the first screen, or is shown it.
        hints: Kinds of apps (`hint_names`) of which it is told what is usual.
        world: The world that it operates.
        calls: How calls are written in examples, which are of phones; None shows no examples.

    Raises:
        ConfigError: There are no such hints.
    """

    def call(tool: str, why: str, **arguments: object) -> str:
        return written_call(Call(tool, arguments), calls or "tagged", why if react else "")

    return _filled(
        "agent.md",
        calls=calls,
        call=call,
        source=source,
        react=react,
        first_screen=first_screen,
        hints=_hints(hints),
        world=world,
        place=_PLACES[world],
    )


def _hints(names: Sequence[str]) -> list[str]:
    if unknown := sorted(set(names) - {*hint_names()}):
        raise ConfigError(f"there are no hints {unknown[0]!r}; hints: {', '.join(hint_names())}")
    return [_templates().get_template(f"hints/{name}.md").render().strip() for name in names]


def _filled(name: str, **values: object) -> str:
    return _templates().get_template(name).render(**values).strip() + "\n"


@cache
def _templates() -> Templates:
    # Blocks leave no empty lines behind. Nothing here is HTML, and only our own files are templates.
    return Templates(
        loader=PackageLoader("selfverify.agents", "prompts"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,  # what is included ends its last line
        autoescape=False,
    )


class JudgeConfig(Config):
    """The judge of submissions."""

    kind: Literal["rules", "state", "model", "own"] = "rules"
    """`rules`: the task's goal, restricted to what the evidence shows; `state`: the goal in the environment's
    state, whatever the evidence shows (Fig. 2a); `model`: a model behind a server; `own`: the policy itself,
    or another one that is loaded here."""

    jury: JuryConfig | None = None
    """How many votes are asked for and how many decide; null is one vote by who is always of one mind (rules,
    state, a policy at temperature 0), and two of three otherwise (§4.2)."""

    flipped: float = Field(0.0, ge=0, le=1)
    """Share of the votes named by `flips` that are turned into their opposite, to see what a fallible judge
    does; less than half of them with `votes`."""

    flips: Flips = "votes"
    """`votes`: any vote may be flipped, apart from all others; `failures`: votes for a failure, each apart;
    `claims`: votes for a failure where the message says that the task is done, all votes on one submission
    alike, so that a jury helps nothing."""

    server: ModelJudgeConfig | None = None
    """The judge of `kind: model`."""

    own: OwnJudgeConfig = Field(default_factory=OwnJudgeConfig)
    """Who judges with `kind: own`, and how it is sampled."""

    @model_validator(mode="after")
    def _check(self) -> JudgeConfig:
        if (self.kind == "model") != (self.server is not None):
            raise ValueError("judge.server (its url and model) goes with judge.kind=model, and only with it")
        if self.flips == "votes" and self.flipped >= 0.5:
            raise ValueError(f"flipped={self.flipped}: with flips=votes it has to be less than 0.5")
        return self

    @property
    def needs_goal(self) -> bool:
        """Whether it can judge only tasks whose goal is known."""
        return self.kind in ("rules", "state")


def make_jury(config: JudgeConfig, world: World, short: ShortForm | None = None) -> Jury:
    """The jury that a recipe asks for.

    Args:
        config: Names the judge.
        world: The world that the agent operates. Of a phone's apps judges are told what is usual.
        short: Cases in few words, where the task has such a form (`judge.own.form=short`).

    Raises:
        ConfigError: There is no short form, the server's address is none, or `serve` is not installed.
    """
    prompt = judge_prompt(hint_names() if world == "phone" else (), world)
    same = config.needs_goal or (config.kind == "own" and config.own.temperature == 0)
    jury = config.jury or (JuryConfig(votes=1, deciding=1) if same else None)
    return Jury(_judge(config, prompt, short), jury, config.flipped, config.flips)


def _judge(config: JudgeConfig, prompt: str, short: ShortForm | None) -> Judge:
    match config.kind:
        case "rules":
            return RulesJudge()
        case "state":
            return StateJudge()
        case "own":
            return OwnJudge(config.own, prompt, short)
    # Late, because a client of servers takes what a core installation has not.
    from selfverify.agents.judges.model_judge import ModelJudge

    assert config.server is not None
    return ModelJudge(config.server, prompt)
