"""Settings of judges; they load without what a client of servers needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from selfverify.agents.judges.case import Quotations
from selfverify.core.config import Config

Flips = Literal["votes", "failures", "claims"]
"""Which votes an erring judge flips; see `selfverify.agents.judges.make_judge.JudgeConfig`."""


class JuryConfig(Config):
    """How many votes are asked for, and how many decide."""

    votes: int = Field(3, ge=1)
    """Votes asked for on each submission (§4.2)."""

    deciding: int = Field(2, ge=1)
    """Equal votes that decide, of those that count. With fewer there is no verdict."""

    stop_early: bool = False
    """Ask for `deciding` votes first, and for the others only where these decide nothing."""

    @model_validator(mode="after")
    def _check(self) -> JuryConfig:
        if not self.votes / 2 < self.deciding <= self.votes:
            raise ValueError(
                f"deciding={self.deciding} of votes={self.votes}: it takes more than half of the votes and "
                "at most all of them, else both sides could win, or none"
            )
        return self


class ModelJudgeConfig(Config):
    """A judge behind a server, and how it is asked."""

    url: str
    """The server's address; one without a path gets `/v1`."""

    model: str
    """The judge's name on the server."""

    temperature: float = Field(0.7, ge=0)
    """Of each vote."""

    max_tokens: int = Field(4096, ge=1)
    """Tokens of a vote, a judge's thoughts included."""

    seed: int | None = None
    """Sent with each vote, raised by the vote's number; null sends none."""

    extra: dict[str, Any] = {}
    """Other fields of the request, as the server knows them."""

    images: bool = True
    """Whether the judge is shown pictures, where screens have any."""

    concurrent: int = Field(32, ge=1)
    """Requests that wait for the server at the same time."""

    timeout_s: float = Field(180.0, gt=0)
    """Seconds that one try may take."""

    tries: int = Field(3, ge=1)
    """How often a request is sent that fails for a passing reason."""

    vote_s: float = Field(600.0, gt=0)
    """Seconds that a vote may take with all its tries, without its place in line."""

    quotations: Quotations = "warn"
    """What becomes of a vote that quotes what stands nowhere: `warn` counts it and logs the rate,
    `invalidate` takes it for a missing vote."""

    cache: Path | None = None
    """A file that keeps answers for all runs; null keeps them in the folder of each run."""


class OwnJudgeConfig(Config):
    """The policy as its own judge, or another one in its place, and how it is sampled."""

    path: str | None = Field(None, min_length=1)
    """A policy that judges in place of the one that answers: a folder, or `builtin:NAME`; null is the one
    that answers."""

    device: str = "auto"
    """With `path`: the device that it is loaded to."""

    form: Literal["full", "short"] = "full"
    """`full`: it is given the prompt, and gives its reasons in its own words; `short`: it reads and answers
    in few words without a prompt, where the task has such a form (`phone` has, and `builtin:phone-judge`
    reads it)."""

    temperature: float = Field(0.7, ge=0)
    """Of each vote; with 0 all votes are the same."""

    max_new_tokens: int = Field(1024, ge=1)
    """Tokens of a vote, thoughts included."""

    quotations: Quotations = "warn"
    """As of a judge behind a server."""
