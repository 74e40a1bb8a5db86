"""Train and run vision-language models that answer and verify their own answers.

from selfverify import Policy, TrainerConfig, evaluate, learn, make_method, make_task
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from selfverify.core.errors import __version__ as __version__

_HOMES = {
    "EvaluationConfig": "selfverify.core.config",
    "TrainerConfig": "selfverify.core.trainer_config",
    "Policy": "selfverify.policy.policy",
    "PolicyConfig": "selfverify.core.policy_config",
    "Problem": "selfverify.core.problem",
    "SamplingConfig": "selfverify.core.config",
    "evaluate": "selfverify.evaluation.evaluate",
    "learn": "selfverify.experiments.run",
    "load_recipe": "selfverify.experiments.recipe",
    "make_method": "selfverify.experiments.registry",
    "make_task": "selfverify.experiments.registry",
    "train": "selfverify.experiments.run",
    "write_report": "selfverify.reports.report",
}
__all__ = sorted(_HOMES)

if TYPE_CHECKING:
    from selfverify.core.config import EvaluationConfig as EvaluationConfig
    from selfverify.core.config import SamplingConfig as SamplingConfig
    from selfverify.core.policy_config import PolicyConfig as PolicyConfig
    from selfverify.core.problem import Problem as Problem
    from selfverify.core.trainer_config import TrainerConfig as TrainerConfig
    from selfverify.evaluation.evaluate import evaluate as evaluate
    from selfverify.experiments.recipe import load_recipe as load_recipe
    from selfverify.experiments.registry import make_method as make_method
    from selfverify.experiments.registry import make_task as make_task
    from selfverify.experiments.run import learn as learn
    from selfverify.experiments.run import train as train
    from selfverify.policy.policy import Policy as Policy
    from selfverify.reports.report import write_report as write_report


def __getattr__(name: str) -> Any:
    # Names are looked up when used, so that `selfverify --help` does not wait for torch.
    if name not in _HOMES:
        raise AttributeError(f"module 'selfverify' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
