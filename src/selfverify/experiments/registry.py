"""The tasks and the methods by the names that recipes use."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Literal

from selfverify.agents.android.task import AndroidAgents
from selfverify.agents.environment_task import EnvironmentAgents
from selfverify.core.config import how_to_get, with_distributions
from selfverify.core.errors import ConfigError
from selfverify.methods.adapo import AdaPO, AdaPOADPO
from selfverify.methods.adpo import ADPO
from selfverify.methods.base import Method
from selfverify.methods.dpo import DPO
from selfverify.methods.grpo import GRPO
from selfverify.methods.score import SCoRe
from selfverify.methods.sft import SFT, ConversationSFT, SelfImitation, TurnsSFT
from selfverify.methods.smartsnap import SmartSnap
from selfverify.methods.star import STaR
from selfverify.tasks.base import Task
from selfverify.tasks.conversations import Conversations, Preferences
from selfverify.tasks.digits import DigitsLocate, DigitsShown, DigitsSum
from selfverify.tasks.digits_pick import DigitsMix, DigitsPick
from selfverify.tasks.grounding import Grounding
from selfverify.tasks.math import Math
from selfverify.tasks.mobile import Mobile
from selfverify.tasks.word_sums import WordSums
from selfverify.visual.digits_far import DigitsFar
from selfverify.visual.task import LookQuestions, MarkedQuestions

_OWN: tuple[type[Task], ...] = (
    DigitsPick,
    DigitsSum,
    DigitsLocate,
    DigitsShown,
    DigitsMix,
    DigitsFar,
    LookQuestions,
    MarkedQuestions,
    WordSums,
    Grounding,
    Mobile,
    Math,
    Conversations,
    Preferences,
    AndroidAgents,
    EnvironmentAgents,
)


def all_tasks() -> dict[str, type[Task]]:
    """Return the package's tasks and those of installed distributions by name.

    Raises:
        ConfigError: Two of them have one name.
    """
    return with_distributions("TASKS", "task", _OWN, lambda tasks: [(task.name, task) for task in tasks])


TASKS = all_tasks()


def look_up(kind: Literal["task", "method"], name: str) -> type[Task] | type[Method]:
    """Return the class of the task or method called ``name``.

    Raises:
        ConfigError: There is none; the message names the nearest one and lists all, or says what to install.
    """
    known: Mapping[str, type[Task] | type[Method]] = TASKS if kind == "task" else METHODS
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}? " if close else ""
    text = f"there is no {kind} {name!r}; {hint}{kind}s: {', '.join(known)}"
    raise ConfigError(how_to_get(name) or text)


def make_task(name: str, **options: Any) -> Task:
    """Return the task called ``name``, with these options.

    Raises:
        ConfigError: There is no such task.
    """
    task: Any = look_up("task", name)
    made: Task = task(task.config_class(**options))
    return made


METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        AdaPO,
        AdaPOADPO,
        ADPO,
        ConversationSFT,
        DPO,
        GRPO,
        SCoRe,
        SelfImitation,
        SFT,
        SmartSnap,
        STaR,
        TurnsSFT,
    )
}


def make_method(name: str, **options: Any) -> Method:
    """Return the method called ``name``, with these options.

    Raises:
        ConfigError: There is no such method.
    """
    method: Any = look_up("method", name)
    made: Method = method(method.config_class(**options))
    return made
