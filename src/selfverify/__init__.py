"""Train and run vision-language models that answer and verify their own answers.

from selfverify import Policy, LearnerConfig, evaluate, learn, make_method, make_task
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "EvaluationConfig": "selfverify.evaluation.config",
    "LearnerConfig": "selfverify.learner.config",
    "Policy": "selfverify.policy.policy",
    "PolicyConfig": "selfverify.policy.config",
    "Problem": "selfverify.rollouts.types",
    "SamplingConfig": "selfverify.policy.config",
    "evaluate": "selfverify.evaluation.evaluate",
    "learn": "selfverify.run",
    "load_recipe": "selfverify.recipe",
    "make_method": "selfverify.methods",
    "make_task": "selfverify.tasks",
    "train": "selfverify.run",
    "write_report": "selfverify.evaluation.report",
}
__all__ = sorted(_HOMES)

if TYPE_CHECKING:
    from selfverify.evaluation.config import EvaluationConfig as EvaluationConfig
    from selfverify.evaluation.evaluate import evaluate as evaluate
    from selfverify.evaluation.report import write_report as write_report
    from selfverify.learner.config import LearnerConfig as LearnerConfig
    from selfverify.methods import make_method as make_method
    from selfverify.policy.config import PolicyConfig as PolicyConfig
    from selfverify.policy.config import SamplingConfig as SamplingConfig
    from selfverify.policy.policy import Policy as Policy
    from selfverify.recipe import load_recipe as load_recipe
    from selfverify.rollouts.types import Problem as Problem
    from selfverify.run import learn as learn
    from selfverify.run import train as train
    from selfverify.tasks import make_task as make_task


def __getattr__(name: str) -> Any:
    # Names are looked up when used, so that `selfverify --help` does not wait for torch.
    if name not in _HOMES:
        raise AttributeError(f"module 'selfverify' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
