"""`browser`: do what a page of MiniWoB++ asks for, in Chromium, and prove it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field, model_validator

from selfverify.agents.episode import AgentConfig
from selfverify.agents.judges.make_judge import JudgeConfig
from selfverify.agents.task import AgentTask, AgentTaskConfig
from selfverify.core.config import RolloutLimits
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem, Split, split_seeds
from selfverify.tasks.base import TaskConfig
from selfverify_miniwob import pages as miniwob
from selfverify_miniwob.chromium import SHARING_A_BROWSER, missing
from selfverify_miniwob.environment import BrowserConfig, BrowserEnvironment
from selfverify_miniwob.tools import BrowserTools


class BrowserAgentsConfig(AgentTaskConfig):
    """Which pages there are, and how they are shown and used."""

    pages: list[str] | None = None
    """Tasks of MiniWoB++ (`miniwob.pages`); null is all that it registers."""

    test_pages: list[str] = []
    """Tasks of the test split, which no other split has; where none is named, all splits have the same tasks
    with other contents."""

    browser: BrowserConfig = Field(default_factory=BrowserConfig)
    """How pages are shown, used and scored."""

    done_from: float = Field(1.0, gt=0, le=1)
    """From which reward of the page's own a task counts as done."""

    agent: AgentConfig = Field(default_factory=lambda: AgentConfig(first_screen="given"))
    """Evidence, refused calls, reward. The first page is always given: it says what is asked."""

    judge: JudgeConfig = Field(default_factory=lambda: JudgeConfig(kind="state"))
    """Who judges submissions. `state` is the page's own reward; no rules know its goal."""

    @model_validator(mode="after")
    def _check(self) -> BrowserAgentsConfig:
        if self.agent.first_screen != "given":
            raise ValueError(
                "agent.first_screen=asked: only the first page says what is asked; set it to given"
            )
        if self.judge.kind == "rules":
            raise ValueError(
                "judge.kind=rules: nobody knows a page's goal but itself; use state, model or own"
            )
        if self.browser.observations == "png" and self.browser.address == "ids":
            raise ValueError("browser: a picture shows no ids; use address=bounds, or observations=both")
        if both := sorted({*self.test_pages} & {*(self.pages or [])}):
            raise ValueError(f"{both[0]} is in pages and in test_pages")
        return self


class BrowserAgents(AgentTask):
    """Pages of MiniWoB++; what a page draws depends on its seed.

    Raises:
        ConfigError: Chromium or what drives it is not installed, or there is no such task.
    """

    name = "browser"
    summary = "do what a page asks for, in Chromium (MiniWoB++), and prove it"
    config_class = BrowserAgentsConfig
    config: BrowserAgentsConfig
    world = "browser"
    looking = frozenset({"look"})
    limits = RolloutLimits(turns=20).model_copy(update=SHARING_A_BROWSER)

    def __init__(self, config: TaskConfig | None = None) -> None:
        super().__init__(config)
        c = self.config
        self.done_from = c.done_from
        if lacking := missing(c.browser.executable):
            raise ConfigError(f"task {self.name}: {lacking}")
        known = miniwob.pages()
        if unknown := [page for page in (*(c.pages or ()), *c.test_pages) if page not in known]:
            miniwob.page_of(unknown[0])  # says which are like it
        trained = [page for page in known if page not in c.test_pages] if c.pages is None else c.pages
        self.pages: dict[Split, list[str]] = {
            "train": trained,
            "validation": trained,
            "test": c.test_pages or trained,
        }
        if empty := [split for split, pages in self.pages.items() if not pages]:
            raise ConfigError(f"task {self.name}: no pages are left for the {empty[0]} split")

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """See `Task.problem`. Pages take turns; what is on them is drawn."""
        pages = self.pages[split]
        page, drawn = pages[index % len(pages)], next(split_seeds(split, seed, index))
        target = {"reset": {"task": page}, "seed": drawn, "goal": None}
        about = {"category": page, "categories": {"page": [page]}}
        return self.agent_problem(
            f"{self.name}/{split}/{seed}/{index}", "Do what the page asks for.", target, about
        )

    def environment(self) -> BrowserEnvironment:
        """See `AgentTask.environment`."""
        return BrowserEnvironment(self.config.browser)

    def tools(self) -> Sequence[dict[str, Any]]:
        """See `AgentTask.tools`."""
        return BrowserTools(self.config.browser.address).schemas
