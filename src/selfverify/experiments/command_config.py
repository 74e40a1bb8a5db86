"""Configs of commands that become options: checks of data files, teachers, watched sessions of an agent, and
looking with a verifier that listens."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from selfverify.core.config import Config, Seed


class CheckConfig(Config):
    """How a data file is read, and the model whose tokens are counted."""

    path: Path = Field(json_schema_extra={"argument": True})
    """A data file, a folder of them, or the hub's OWNER/NAME."""

    format: str | None = None
    """The file's format, if it is not recognised."""

    split: str | None = None
    """The split to read, where there are several."""

    config: str | None = None
    """Of a data set of the hub: its configuration (subset)."""

    revision: str | None = None
    """Of a data set of the hub: a branch, tag or commit."""

    images: Path | None = None
    """The folder that paths of images start from; by default the data file's."""

    limit: int | None = Field(None, ge=1)
    """The largest number of rows to read."""

    model: str = "builtin:digits"
    """The model whose tokens are counted; its weights are not loaded."""

    max_pixels: int | None = Field(None, ge=1)
    """The largest image area after resizing, as `policy.max_pixels` in a recipe."""

    samples: int = Field(3, ge=0)
    """The number of problems to show as the model sees them."""


class TeacherConfig(Config):
    """The teacher."""

    expert: bool = False
    """A script that knows the way: what the task demonstrates."""

    own: bool = False
    """The recipe's own policy."""

    server: str | None = None
    """An OpenAI-compatible server behind which the teacher is."""

    model: str | None = None
    """With `server`: the teacher's name there."""

    temperature: float = Field(1.0, ge=0.0)
    """Of each turn of a model; 0 is greedy."""

    max_tokens: int = Field(4096, ge=1)
    """Tokens of a turn of a model, its thoughts included."""

    timeout: float = Field(300.0, ge=0.1)
    """Seconds that one answer may take."""

    @model_validator(mode="after")
    def _one_teacher(self) -> TeacherConfig:
        if self.expert + self.own + (self.server is not None) != 1:
            raise ValueError("say who teaches: `expert`, `own`, or `server` with `model`")
        if (self.server is None) != (self.model is None):
            raise ValueError("`server` and `model` go together")
        return self

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a request to the server, besides its messages and seed."""
        return {"model": self.model, "temperature": self.temperature, "max_tokens": self.max_tokens}


class AgentRunConfig(Config):
    """The task and the environment."""

    instruction: str | None = Field(None, json_schema_extra={"argument": True})
    """The agent's task, in your own words. No goal is known then: only a `judge` can say whether it
    is done."""

    template: str | None = None
    """A kind of task instead, such as `clock-add`, which brings its words, its goal and a judge by rules."""

    environment: str = "phone"
    """Where the agent works: a task of agents, by its name."""

    seed: Seed = 0
    """Decides what is in the environment, and how a model is sampled."""

    hostile: bool = False
    """Write texts on screens that try to deceive agents, readers and judges."""

    max_turns: int = Field(30, ge=1, le=1000)
    """Calls that the agent may make, the last of which should hand in its work."""

    @model_validator(mode="after")
    def _one_task(self) -> AgentRunConfig:
        if self.template is not None and self.instruction is not None:
            raise ValueError("`template` brings its own instruction; leave yours out")
        if self.template is None and not (self.instruction or "").strip():
            raise ValueError("say what is to be done, or take a kind of task with `template`")
        return self


class ActorConfig(Config):
    """The agent."""

    expert: bool = False
    """With `template`: a script that knows the way acts, so that no model is needed."""

    model: str | None = None
    """The model that acts: a folder or a hub id; with `server` its name there."""

    server: str | None = None
    """An OpenAI-compatible server behind which the model is."""

    text: Literal["xml", "terse"] = "xml"
    """Screens in words, as the model was trained: compressed XML, or a few words with ids."""

    show: Literal["text", "png", "both"] = "text"
    """The form of screens for the model: words, pictures, or both."""

    prompt: Literal["principles", "task"] = "principles"
    """Whether the model is told how to work and to prove it, or its task alone."""

    temperature: float = Field(0.0, ge=0.0)
    """The sampling temperature; 0 always takes the likeliest token."""

    max_new_tokens: int = Field(1024, ge=1)
    """The most tokens of a turn."""

    timeout: float = Field(120.0, ge=0.1)
    """With `server`: the most seconds that one answer may take."""

    @model_validator(mode="after")
    def _one_actor(self) -> ActorConfig:
        if self.expert + (self.server is not None or self.model is not None) != 1:
            raise ValueError("say who acts: `expert`, `model`, or `server` with `model`")
        if self.server is not None and self.model is None:
            raise ValueError("`server` needs `model`: the model's name there")
        return self


class AgentSessionConfig(Config):
    """One session of an agent: what is asked, who acts, who judges, and the page about it."""

    task: AgentRunConfig
    actor: ActorConfig
    judge: str | None = None
    """An OpenAI-compatible server whose model judges what is handed in, three times, two of which decide."""

    judge_model: str | None = None
    """With `judge`: the model's name there."""

    output: Path = Path("agent.html")
    """The page to write."""

    @model_validator(mode="after")
    def _together(self) -> AgentSessionConfig:
        if self.actor.expert and self.task.template is None:
            raise ValueError("`expert` knows the way of a `template` only, not of an instruction of your own")
        if (self.judge is None) != (self.judge_model is None):
            raise ValueError("`judge` and `judge_model` go together")
        return self

    def options(self) -> dict[str, Any]:
        """Return the options of the task that the agent works on.

        Of those that not every task of agents has, such as how screens are written, only what is not as
        usual is among them.
        """
        task, actor = self.task, self.actor
        found: dict[str, Any] = {"prompt": actor.prompt, "agent": {"first_screen": "given"}}
        if self.judge is not None:
            found["judge"] = {"kind": "model", "server": {"url": self.judge, "model": self.judge_model}}
        for settings, names in ((task, ("hostile",)), (actor, ("text", "show"))):
            fields, given = type(settings).model_fields, dict(settings)
            found |= {name: given[name] for name in names if given[name] != fields[name].default}
        return found


class ListenerConfig(Config):
    """The policy that looks, and the verifier that listens."""

    verifier: str
    """The verifier's folder: a model with an adapter, or with --verifier-base any model."""

    verifier_base: str | None = None
    """The model that the verifier was trained from; by default the model below its adapter."""

    model: str | None = None
    """The model that looks, instead of the recipe's."""

    recipe: str | None = None
    """The recipe with the task and the evaluation's settings. A model in a run's folder needs none."""

    tool: list[str] = []
    """For a task that does not look by itself: a tool; repeat the option. By default all that are there."""

    max_steps: int | None = Field(None, ge=1, le=100)
    """For such a task: the most steps."""

    output: Path | None = None
    """The folder in which the conversations are kept; by default `looking` in the run's."""
