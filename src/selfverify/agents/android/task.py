"""The task `android`: do AndroidLab's tasks on devices that adb reaches, and prove it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import model_validator

from selfverify.agents.android.androidlab import AndroidTask, read_lengths, read_tasks
from selfverify.agents.android.config import AndroidConfig, AndroidTaskConfig
from selfverify.agents.environment_task import SourceOf
from selfverify.agents.judges.make_judge import JudgeConfig
from selfverify.agents.session import PooledEnvironment, SharedPool
from selfverify.agents.task import AgentTask, AgentTaskConfig
from selfverify.agents.tools import ScreenTools
from selfverify.connectors.pool import Source
from selfverify.core import ranks
from selfverify.core.config import RolloutLimits
from selfverify.core.errors import ConfigError, DataError, needs
from selfverify.core.problem import Problem, Split
from selfverify.tasks.base import TaskConfig
from selfverify.tasks.row_task import training_place


class AndroidAgentsConfig(AgentTaskConfig):
    """Which tasks there are, on which devices."""

    train: Path | None = None
    """AndroidLab's YAML file of training tasks, or their folder."""

    validation: Path | None = None
    """Those of validation tasks."""

    test: Path | None = None
    """Those of test tasks."""

    lengths: Path | None = None
    """A JSON file with the calls that a person needs, by validation and test tasks' ids, for RRR:
    AndroidLab's `tasks/human_ground_turth/ground_truth_length.json`."""

    devices: list[str] = []
    """Serial numbers of the devices, as `adb devices` lists them, or HOST:PORT/SERIAL where another adb
    server has them. As many conversations are held at the same time; training processes share them out."""

    consoles: dict[str, str] = {}
    """By device, as `devices` names it, the HOST:PORT from which a tunnel leads to its emulator's console,
    which listens on its own host only."""

    sources: list[SourceOf] = []
    """Servers of devices (`selfverify agent serve android`), with `kind: server`, `url` and `sessions`. All
    training processes use them, also where they are more than the devices."""

    unattended: list[str] = []
    """Those of `devices` that are no emulators, such as containers and phones for tests: they may be used
    without anybody being asked, within `android.allowed`. Others are refused."""

    android: AndroidConfig
    """How devices are reset, shown and touched."""

    judge: JudgeConfig
    """Who judges submissions: `model` or `own`; no rules know the goals."""

    @model_validator(mode="after")
    def _check(self) -> AndroidAgentsConfig:
        if self.judge.needs_goal:
            raise ValueError(
                f"judge.kind={self.judge.kind}: the goals of AndroidLab's tasks are programs of its own; "
                "use model or own, and evaluate the traces with AndroidLab (android.traces)"
            )
        if not self.devices and not self.sources:
            raise ValueError("name `devices`, or `sources` that have some")
        if len(set(self.devices)) != len(self.devices):
            raise ValueError("devices names a device twice; name each once")
        if unknown := {*self.consoles, *self.unattended} - {*self.devices}:
            raise ValueError(f"consoles and unattended name {min(unknown)}, which is none of the devices")
        given = self.android.model_fields_set
        if "first_screen" in given and self.android.first_screen != self.agent.first_screen:
            raise ValueError("android.first_screen differs from agent.first_screen; set the latter only")
        if self.prompt == "examples" and self.android.address == "ids":
            raise ValueError("prompt=examples names places by bounds; set android.address=bounds with it")
        if self.android.observations == "png" and self.android.address == "ids":
            raise ValueError("android: a picture shows no ids; use address=bounds, or observations=both")
        return self

    def file(self, split: Split) -> Path | None:
        """The task file or folder of a split."""
        return {"train": self.train, "validation": self.validation, "test": self.test}[split]


class AndroidAgents(AgentTask):
    """AndroidLab's tasks: operations and queries, whose goals only its own evaluator knows.

    Training goes through all tasks again and again, each time in another order; the other splits come once.
    """

    name = "android"
    summary = "do AndroidLab's tasks on Android devices and prove it"
    config_class = AndroidAgentsConfig
    config: AndroidAgentsConfig
    world = "phone"
    looking = frozenset({"get_current_xml"})
    repeatable = False
    # A reset may start the system anew.
    limits = RolloutLimits(turns=30, step_threads=64, step_timeout_s=600)

    def __init__(self, config: TaskConfig | None = None) -> None:
        super().__init__(config)
        self._tasks: dict[Split, list[AndroidTask]] = {}
        self._lengths = {} if self.config.lengths is None else read_lengths(self.config.lengths.expanduser())
        own = self.config.devices[ranks.index() :: ranks.count()]
        if not own and not self.config.sources:
            raise ConfigError(
                f"task {self.name}: {ranks.count()} processes share {len(self.config.devices)} devices; "
                "name as many as there are processes, or let `selfverify agent serve android` lend them "
                "(sources)"
            )
        sessions = len(own) + sum(source.sessions for source in self.config.sources)
        self.limits = self.limits.model_copy(update={"concurrent": sessions})
        self._lender = SharedPool(lambda: self._sources(own))

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """Return the problem of a task in AndroidLab's files.

        Raises:
            ConfigError: The split has no task file.
            DataError: The file is damaged, or the split has fewer tasks.
        """
        tasks = self.tasks_of(split)
        place, turn = training_place(seed, index, len(tasks)) if split == "train" else (index, 0)
        if place >= len(tasks):
            raise DataError(f"{self.config.file(split)} has {len(tasks)} tasks, not {index + 1}")
        task = tasks[place]
        name = f"{self.name}/{split}/{task.task_id}" + (f"/pass-{turn + 1}" if turn else "")
        target = {"reset": task.model_dump(mode="json"), "seed": index, "goal": None}
        kind = {"kind": [task.metric_type]} if task.metric_type else {}
        about: dict[str, Any] = {"category": task.app, "categories": {"app": [task.app], **kind}}
        # Training tasks have the same ids and are others.
        if split != "train" and task.task_id in self._lengths:
            about["steps"] = self._lengths[task.task_id]
        return self.agent_problem(name, task.instruction, target, about)

    def tasks_of(self, split: Split) -> list[AndroidTask]:
        """The tasks of a split, in the files' order.

        Raises:
            ConfigError: The split has no task file.
            DataError: The file is damaged.
        """
        if split not in self._tasks:
            file = self.config.file(split)
            if file is None:
                raise ConfigError(f"the task has no {split} data; set task.{split} to a file or folder")
            self._tasks[split] = read_tasks(file.expanduser())
        return self._tasks[split]

    def count(self, split: Split) -> int:
        return len(self.tasks_of(split))

    def check_files(self, split: Split) -> None:
        if self.config.file(split) is not None:
            self.tasks_of(split)

    def environment(self) -> PooledEnvironment:
        """Lend the conversation a free device."""
        return PooledEnvironment(self._lender, self.tools())

    def tools(self) -> Sequence[dict[str, Any]]:
        return ScreenTools(self.config.android.address).schemas

    def _sources(self, devices: Sequence[str]) -> list[Source]:
        with needs("`devices` need", "agents"):
            from selfverify.agents.android.environment import DeviceSource, FirstScreens
        c, first_screens = self.config, FirstScreens()
        settings = c.android.model_dump() | {"first_screen": c.agent.first_screen}
        sources = [source.make() for source in c.sources]
        for device in devices:
            server, _, serial = device.rpartition("/")
            own = {"serial": serial, "server": server or c.android.server, "console": c.consoles.get(device)}
            confirm = _agree if device in c.unattended else None
            sources.append(DeviceSource(AndroidTaskConfig(**settings | own), confirm, first_screens))
        return sources


async def _agree(what: str) -> bool:
    return True
