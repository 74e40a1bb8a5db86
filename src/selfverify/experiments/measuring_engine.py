"""vLLM as the engine of an evaluation or a filter: it runs as long as one model answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from selfverify.core import ranks
from selfverify.core.config import SamplingConfig
from selfverify.core.errors import ConfigError
from selfverify.evaluation.answerers import Answerer
from selfverify.policy.policy import Policy
from selfverify.policy.vllm import VLLMEngine, require_vllm
from selfverify.trainer.parallel import make_accelerator


@contextmanager
def measuring_engine(
    policy: Policy | Answerer, sampling: SamplingConfig, temperature: float
) -> Iterator[None]:
    """A block in which a policy samples by the engine that ``sampling`` names.

    A model behind a server samples there, whatever the engine.

    Args:
        policy: Who answers.
        sampling: Names the engine, and its settings.
        temperature: Of the answers.

    Raises:
        ConfigError: vLLM is not installed or does not start, there are several processes, or answers are
            greedy: those have no log-probabilities in vLLM that could be compared with others.
    """
    if sampling.engine == "own" or isinstance(policy, Answerer):
        yield
        return
    if temperature == 0:
        raise ConfigError(
            "sampling.engine=vllm at temperature 0: greedy answers come from sampling.engine=own, or from "
            "`vllm serve` with policy.path=URL#MODEL"
        )
    if ranks.count() > 1:
        raise ConfigError(
            "sampling.engine=vllm: one process measures with vLLM; give it more devices by "
            "policy.path=URL#MODEL and `vllm serve`"
        )
    require_vllm()
    engine = VLLMEngine(policy, make_accelerator(policy), sampling)
    policy.engine = engine
    try:
        yield
    finally:
        policy.engine = None
        engine.close()
