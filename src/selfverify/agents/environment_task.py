"""The task `environment`: tasks of data files, done in environments of servers, and proven.

A recipe's environments come from servers by their addresses, or from processes that are started here.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator

from selfverify.agents.episode import AgentConfig
from selfverify.agents.evidence import SUBMIT
from selfverify.agents.goals import Goal
from selfverify.agents.session import PooledEnvironment, SharedPool
from selfverify.agents.task import AgentTask, AgentTaskConfig
from selfverify.connectors.pool import LocalSource, PoolConfig, Source, SourceConfig
from selfverify.core.config import RolloutLimits, with_distributions
from selfverify.core.episode import Environment, EnvironmentLost
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.problem import Problem, Split, split_seeds
from selfverify.data.conversations import convert_agent_task
from selfverify.data.fields import Row
from selfverify.tasks.base import TaskConfig
from selfverify.tasks.row_task import RowTask, RowTaskConfig
from selfverify.tasks.tool_calls import short_name

# Clients are imported late, because a core installation lacks what they need; the first names what that is.


class ServerSourceConfig(SourceConfig):
    """A server that speaks OpenEnv's wire: `selfverify agent serve`, or anybody's. It is sent the key."""

    url: str
    """Its address, such as http://127.0.0.1:8000/phone."""

    actions: Literal["tools", "plain"] = "tools"
    """Whether its actions are calls of tools, or of one kind (`RemoteConfig`)."""

    def make(self) -> Source:
        from selfverify.connectors.openenv import RemoteConfig
        from selfverify.connectors.sources import ServerSource

        return ServerSource(RemoteConfig(self.url, key=_key(), actions=self.actions), self.sessions)


class McpSourceConfig(SourceConfig):
    """A server of the Model Context Protocol, by its address or the command that starts it."""

    url: str | None = None
    """Its address, such as http://127.0.0.1:8000/mcp."""

    command: list[str] = []
    """Or the command that starts one, with its arguments."""

    begin: str | None = None
    """The tool that begins a task, on our servers `begin`."""

    @model_validator(mode="after")
    def _one(self) -> McpSourceConfig:
        if bool(self.command) == bool(self.url):
            raise ValueError("a server of MCP has either a url or a command")
        return self

    def make(self) -> Source:
        from selfverify.connectors.mcp import McpConfig, McpToolset

        settings = McpConfig(self.command, self.url, key=_key(), begin=self.begin)

        class Toolsets(LocalSource):
            """Opens a toolset at once, so that its tools are known."""

            async def open(self) -> Environment:
                made = McpToolset(settings)
                await made.open()  # closes itself where it fails
                return made

        return Toolsets(lambda: McpToolset(settings), self.sessions, McpToolset(settings).name)


class ProcessSourceConfig(SourceConfig):
    """A process of our own with an environment in it, such as a Gymnasium one."""

    factory: str
    """What makes an environment, as package.module:name."""

    def make(self) -> Source:
        from selfverify.connectors.sources import ProcessSource

        return ProcessSource(self.factory, self.sessions)


def _key() -> str | None:
    from selfverify.connectors.openenv import KEY_VARIABLE

    return os.environ.get(KEY_VARIABLE)


def source_kinds() -> dict[str, type[SourceConfig]]:
    """Return the kinds of sources, those of installed distributions included.

    Raises:
        ConfigError: Two of them have one name.
    """
    own = {"server": ServerSourceConfig, "mcp": McpSourceConfig, "process": ProcessSourceConfig}
    return with_distributions("SOURCES", "kind of sources", own, lambda kinds: kinds.items())


def _by_kind(given: Any) -> Any:
    if not isinstance(given, Mapping) or "kind" not in given:
        return given
    kinds, kind = source_kinds(), given["kind"]
    if kind not in kinds:
        raise ValueError(
            f"there is no kind {str(kind)[:40]!r} of sources; kinds: {', '.join(kinds)}. Distributions bring "
            "more: android-world comes with selfverify-android-world (in a checkout: pip install "
            "./environments/android_world)"
        )
    return kinds[kind].model_validate(given)


SourceOf = Annotated[SerializeAsAny[SourceConfig], BeforeValidator(_by_kind)]
"""A source of any kind that is installed."""


class EnvironmentAgentsConfig(AgentTaskConfig, RowTaskConfig):
    """Which tasks there are (data files), and where environments come from."""

    sources: list[SourceOf] = Field(min_length=1)
    """Servers and processes: `kind` is server (OpenEnv's wire), mcp, process, or that of an installed
    distribution, such as android-world. As many conversations are held at the same time as they have
    sessions. Each training process opens its own."""

    wait_s: float = Field(120.0, gt=0)
    """Seconds that a conversation waits for a session at most."""

    looking: list[str] = []
    """Tools that show the state and do nothing; they are no steps."""

    done_from: float | None = None
    """From which sum of the environment's own rewards a task counts as done; null where it scores nothing.
    AndroidWorld's is 1."""

    agent: AgentConfig = Field(default_factory=lambda: AgentConfig(first_screen="given"))
    """First screen, evidence, refused calls, reward."""

    @model_validator(mode="after")
    def _check(self) -> EnvironmentAgentsConfig:
        if self.judge.kind == "state" and self.done_from is None:
            raise ValueError("judge.kind=state: say with done_from which of its rewards is enough")
        return self


class EnvironmentAgents(AgentTask, RowTask):
    """Each row says what is asked and what the environment is reset to; docs/environments.md shows rows."""

    name = "environment"
    summary = "do tasks in environments of servers and prove it"
    config_class = EnvironmentAgentsConfig
    config: EnvironmentAgentsConfig
    world = "tools"
    convert = staticmethod(convert_agent_task)
    needs = ("instruction", "task")
    repeatable = False
    limits = RolloutLimits(turns=30, step_threads=64, step_timeout_s=300)

    def __init__(self, config: TaskConfig | None = None) -> None:
        super().__init__(config)
        c = self.config
        self.looking, self.done_from = frozenset(c.looking), c.done_from
        pool = PoolConfig(wait_s=c.wait_s)
        self._lender = SharedPool(lambda: [source.make() for source in c.sources], pool)
        self._known: list[dict[str, Any]] | None = None
        sessions = sum(source.sessions for source in c.sources)
        self.limits = self.limits.model_copy(update={"concurrent": sessions})

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """Return the problem of a row; a row without a seed has another one in each pass."""
        row, id = self.row(split, seed, index)
        if row["seed"] is None:
            row = {**row, "seed": next(split_seeds(split, seed, index))}
        return self.ask(row, id)

    def ask(self, row: Row, id: str) -> Problem:
        """Return the problem that a row asks.

        Raises:
            DataError: The row's goal is none, or rules are to judge and there is none.
        """
        if row["goal"] is not None:
            Goal.read(row["goal"], f"{id}: goal")
        if row["goal"] is None and self.config.judge.kind == "rules":
            raise DataError(
                f"{id}: the row has no goal, and rules judge by one; set judge.kind to state (with "
                "done_from), model or own"
            )
        target = {"reset": row["task"], "seed": row["seed"], "goal": row["goal"]}
        steps = {} if row["steps"] is None else {"steps": row["steps"]}
        about = {"category": row["category"], "categories": row["categories"], **steps}
        return self.agent_problem(id, row["instruction"], target, about)

    def check_files(self, split: Split) -> None:
        """Open the split's file and ask for the tools, so that a server that is down shows at once."""
        super().check_files(split)
        self.tools()

    def environment(self) -> PooledEnvironment:
        """Lend the conversation a free session."""
        return PooledEnvironment(self._lender, self.tools())

    def tools(self) -> Sequence[dict[str, Any]]:
        """Return the tools of the sources; one session is asked, once.

        Raises:
            ConfigError: No session can be had, or two tools have one name, `SUBMIT` among them.
        """
        if self._known is None:
            try:
                found = self._lender.ask_for_tools()
            except (DataError, EnvironmentLost) as error:
                raise ConfigError(f"task {self.name}: {error}") from None
            names = Counter(tool["function"]["name"] for tool in found)
            names[SUBMIT] += 1
            if twice := [short_name(name) for name, count in names.items() if count > 1]:
                raise ConfigError(
                    f"task {self.name}: two tools are called {twice[0]}, so that no call could say which is "
                    f"meant; agents hand in with {SUBMIT}"
                )
            self._known = found
        return self._known
