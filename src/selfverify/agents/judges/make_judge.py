"""The judge that a recipe asks for."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from selfverify.agents.cases import Judge
from selfverify.agents.judges.flipped_votes import FlippedVotes
from selfverify.agents.judges.judge_settings import JuryConfig, ModelJudgeConfig, OwnJudgeConfig
from selfverify.agents.judges.jury import Jury
from selfverify.agents.judges.own_judge import OwnJudge, ShortForm
from selfverify.agents.judges.rules_judge import RulesJudge
from selfverify.agents.judges.state_judge import StateJudge
from selfverify.agents.prompting import World, judge_prompt
from selfverify.core.config import Config


class JudgeConfig(Config):
    """Who judges submissions."""

    kind: Literal["rules", "state", "model", "own"] = Field(
        "rules",
        description="`rules`: the task's goal, restricted to what the evidence shows; `state`: the goal in "
        "the environment's state, whatever the evidence shows (Fig. 2a); `model`: a model behind a server; "
        "`own`: the policy itself, or another one that is loaded here.",
    )
    jury: JuryConfig | None = Field(
        None,
        description="How many votes are asked for and how many decide; null is one vote by who is always of "
        "one mind (rules, state, a policy at temperature 0), and two of three otherwise (§4.2).",
    )
    flipped: float = Field(
        0.0,
        ge=0,
        lt=0.5,
        description="Share of votes that are turned into their opposite, to see what a fallible judge does.",
    )
    server: ModelJudgeConfig | None = Field(None, description="The judge of `kind: model`.")
    own: OwnJudgeConfig = Field(
        default_factory=OwnJudgeConfig, description="Who judges with `kind: own`, and how it is sampled."
    )
    hints: list[str] | None = Field(
        None, description="Kinds of apps of which the judge is told what is usual; null is all there are."
    )

    @model_validator(mode="after")
    def _check(self) -> JudgeConfig:
        if (self.kind == "model") != (self.server is not None):
            raise ValueError("judge.server (its url and model) goes with judge.kind=model, and only with it")
        return self

    @property
    def needs_goal(self) -> bool:
        """Whether it can judge only tasks whose goal is known."""
        return self.kind in ("rules", "state")


def make_jury(config: JudgeConfig, hints: list[str], world: World, short: ShortForm | None = None) -> Jury:
    """The jury that a recipe asks for.

    Args:
        config: Who judges.
        hints: Kinds of apps of which judges are told where the recipe does not say.
        world: What the agent operates.
        short: Cases in few words, where the task has such a form (`judge.own.form=short`).

    Raises:
        ConfigError: There are no such hints or no short form, the server's address is none, or `serve` is not
            installed.
    """
    prompt = judge_prompt(hints if config.hints is None else config.hints, world)
    juror = _juror(config, prompt, short)
    if config.flipped:
        juror = FlippedVotes(juror, config.flipped)
    same = config.needs_goal or (config.kind == "own" and config.own.temperature == 0)
    return Jury(juror, config.jury or (JuryConfig(votes=1, deciding=1) if same else None))


def _juror(config: JudgeConfig, prompt: str, short: ShortForm | None) -> Judge:
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
