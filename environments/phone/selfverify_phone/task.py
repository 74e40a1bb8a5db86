"""`phone`: do something on a phone, and prove it (SmartSnap), on the phone that comes with this library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from selfverify.agents.task import AgentTask, AgentTaskConfig
from selfverify.agents.tools import Address
from selfverify.core.episode import Call, Environment
from selfverify.core.errors import DataError
from selfverify.core.problem import Problem, Split, split_seeds
from selfverify.tasks.base import DemonstratedTurn, Frame
from selfverify_phone.demonstrations import Teacher, demonstrated
from selfverify_phone.environment import PhoneConfig, PhoneEnvironment, reset_phone
from selfverify_phone.film import film
from selfverify_phone.phone_tasks import make_task, named
from selfverify_phone.short_form import SHORT, SMALL_JUDGE
from selfverify_phone.short_tasks import short_kinds, short_seed
from selfverify_phone.splits import HELD_OUT_APPS, Unseen, templates_of
from selfverify_phone.templates import TEMPLATES
from selfverify_phone.templates.base import Template

LOOKING = frozenset({"get_current_xml"})
"""Tools that show the screen and do nothing."""


class PhoneAgentsConfig(AgentTaskConfig):
    """Which tasks there are on the phone, and how it is shown and touched."""

    apps: list[str] | None = None
    """Apps that tasks are about; null is all there are."""

    held_out: Unseen = "templates"
    """What the test split has that training has not: other contents of the same kinds of tasks, kinds of
    tasks, or the apps `test_apps`."""

    test_apps: list[str] = []
    """Apps of the test split, with `held_out: apps`; if none is named, music and reader."""

    start: Literal["home", "app"] = "home"
    """Whether the phone shows its home screen at first, or the app already."""

    hostile: bool = False
    """Write texts on screens that try to deceive agents, readers and judges."""

    max_calls: int | None = Field(None, ge=2)
    """Leave out tasks of which an expert needs more calls: to the goal, to evidence, to hand in, and to ask
    for the first screen where it is not given. `episode.turns` in a recipe with few turns."""

    address: Address = "ids"
    """How calls name what they touch: by ids, or by bounds as the paper's tools do."""

    text: Literal["xml", "terse"] = "xml"
    """Screens in words: compressed XML with bounds, or a few words with ids."""

    show: Literal["text", "png", "both"] = "text"
    """Screens in words, as pictures, or both."""

    teacher: Teacher = Field(default_factory=Teacher)
    """How well demonstrations choose their evidence."""

    @model_validator(mode="after")
    def _check(self) -> PhoneAgentsConfig:
        known = list(dict.fromkeys(template.app for template in TEMPLATES.values()))
        for name, apps in (("apps", self.apps or []), ("test_apps", self.test_apps)):
            if unknown := [app for app in apps if app not in known]:
                raise ValueError(f"{name}: there is no app {unknown[0]!r}; apps: {', '.join(known)}")
        own = self.judge.own
        if own.path == SMALL_JUDGE and own.form != "short":
            raise ValueError(f"{SMALL_JUDGE} reads and answers in few words only: set form=short with it")
        if self.test_apps and self.held_out != "apps":
            raise ValueError("test_apps goes with held_out=apps, and only with it")
        PhoneConfig(address=self.address, text=self.text, show=self.show)
        for split in ("train", "test"):
            if not self.templates(split):
                short = "" if self.max_calls is None else f" that take at most {self.max_calls} calls"
                raise ValueError(f"no kinds of tasks{short} are left for the {split} split")
        return self

    def templates(self, split: Split) -> list[Template]:
        """The kinds of tasks of a split. Validation has those of training, with other contents."""
        kinds = templates_of(split, self.held_out, self.apps, self.test_apps or HELD_OUT_APPS)
        if self.max_calls is None:
            return kinds
        return short_kinds(kinds, self.start, self.hostile, self._asked, self.max_calls)

    def seed_of(self, kind: Template, split: Split, seed: int, index: int) -> int:
        """What decides the contents of a problem of this kind."""
        if self.max_calls is None:
            return next(split_seeds(split, seed, index))
        return short_seed(kind, split, seed, index, self.start, self.hostile, self._asked, self.max_calls)

    @property
    def _asked(self) -> bool:
        """Whether the agent asks for the first screen."""
        return self.agent.first_screen == "asked"

    @property
    def options(self) -> PhoneConfig:
        """How the phone is shown and touched."""
        return PhoneConfig(
            address=self.address, text=self.text, show=self.show, first_screen=self.agent.first_screen
        )


class PhoneTarget(BaseModel):
    """A problem's target: what its session is reset to."""

    model_config = ConfigDict(extra="forbid")

    reset: dict[str, Any]
    seed: int
    goal: dict[str, Any] | None = None


class PhoneAgents(AgentTask):
    """Tasks on the phone that comes with this library, whose goals are known."""

    name = "phone"
    summary = "do something on a phone and prove it"
    config_class = PhoneAgentsConfig
    config: PhoneAgentsConfig
    world = "phone"
    looking = LOOKING
    short = SHORT

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """See `Task.problem`. Kinds of tasks take turns, in an order drawn anew each time round.

        In the templates' own order a step would be about one app alone.
        """
        kinds = self.config.templates(split)
        time_round, place = divmod(index, len(kinds))
        kind = kinds[np.random.default_rng([seed, time_round]).permutation(len(kinds))[place]]
        drawn = self.config.seed_of(kind, split, seed, index)
        return self.of_template(kind, drawn, f"{self.name}/{split}/{seed}/{index}")

    def of_template(self, kind: Template, drawn: int, name: str) -> Problem:
        """A problem of this kind, called ``name``, whose contents the seed ``drawn`` decides."""
        c = self.config
        made = make_task(kind.name, drawn, c.start, c.hostile)
        reset = {"template": kind.name, "start": c.start, "hostile": c.hostile}
        target = {"reset": reset, "seed": drawn, "goal": made.goal.model_dump(mode="json")}
        about = {
            "category": kind.app,
            "categories": {"app": [kind.app], "template": [kind.name], "kind": [kind.kind]},
            "steps": made.length,
        }
        return self.agent_problem(name, made.instruction, target, about)

    def named_problem(self, kind: str, seed: int) -> Problem:
        """See `AgentTask.named_problem`; a kind is the name of a template."""
        template = named(kind)
        return self.of_template(template, seed, f"{template.name}/{seed}")

    def asked_problem(self, instruction: str, seed: int) -> Problem:
        """See `AgentTask.asked_problem`."""
        target = {"reset": {"free": True, "hostile": self.config.hostile}, "seed": seed, "goal": None}
        return self.agent_problem(f"free/{seed}", instruction, target, {})

    def environment(self) -> Environment:
        """See `AgentTask.environment`."""
        return PhoneEnvironment(self.config.options)

    def tools(self) -> Sequence[dict[str, Any]]:
        """See `AgentTask.tools`."""
        return PhoneEnvironment(self.config.options).tools

    def demonstrate_turns(self, problem: Problem, rng: np.random.Generator) -> Sequence[DemonstratedTurn]:
        """An expert's shortest way, and the smallest evidence for it."""
        c, target = self.config, problem.target
        made = make_task(target["reset"]["template"], target["seed"], c.start, c.hostile)
        return demonstrated(made, c.options, c.agent.evidence.source, c.react, c.calls, c.teacher, rng)

    @classmethod
    def frames(cls, target: Any, calls: Sequence[Call]) -> Sequence[Frame] | None:
        """See `Task.frames`; None for the target of no session on the phone."""
        try:
            begun = PhoneTarget.model_validate(target)
            _, phone = reset_phone(begun.reset, begun.seed)
        except (ValidationError, DataError):
            return None
        return film(phone, calls)
