"""Small training runs as a program for one or several processes.

With ``talk`` its task converses: ragged turns, images in observations, first screens, conversations that are
over at once, and one reply that hangs past its deadline. ``replay`` names the folder of a run: its log is
learnt from once more, in the folder ``again``. ``bad`` is the number of a step, from 0, in which the last
process's loss is NaN.

Usage: several.py WAY OUTPUT [SETTING=VALUE ...] [+ OUTPUT ...] where WAY is alone, ddp or fsdp. Runs
that a plus separates are made one after another: it is starting that takes long.

accelerate offers FSDP on GPUs only. Here it runs on a CPU, with all else as it would be there.
"""

import faulthandler
import json
import random
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import torch
from accelerate import FullyShardedDataParallelPlugin, PartialState
from accelerate.utils import DistributedType
from PIL import Image

from rounding import float64
from selfverify.core import ranks
from selfverify.core.config import RolloutLimits, SamplingConfig
from selfverify.core.episode import Episode, Observation, PolicyTurn
from selfverify.core.policy_config import AdapterConfig, PolicyConfig
from selfverify.core.problem import Problem
from selfverify.core.trainer_config import TrainerConfig
from selfverify.core.trajectory import ANSWER
from selfverify.experiments.registry import make_method
from selfverify.methods.base import Training
from selfverify.policy.policy import Policy
from selfverify.tasks.answering import SingleTurn
from selfverify.tasks.digits_pick import DigitsPick
from selfverify.trainer import loss
from selfverify.trainer.trainer import Trainer


def use_fsdp_on_cpu(learner: Trainer) -> None:
    """What `accelerate launch --use_fsdp` sets where there are GPUs."""
    learner.accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap"
    )
    learner.accelerator.state.distributed_type = DistributedType.FSDP
    PartialState._shared_state["distributed_type"] = DistributedType.FSDP


def spoil(learner: Trainer, step: int) -> None:
    """Let the loss of the last process be NaN in a step."""
    right = loss.surrogate

    def surrogate(*streams, **options):
        terms = right(*streams, **options)
        bad = learner.step == step and ranks.index() == ranks.count() - 1
        return terms._replace(loss=terms.loss * torch.nan) if bad else terms

    loss.surrogate = surrogate


class Uneven(DigitsPick):
    """`digits-pick`, every second problem without an image (``text``), or four in turn (``repeat``)."""

    def __init__(self, given: dict[str, str]) -> None:
        super().__init__()
        self.given = given

    def problem(self, split: str, seed: int, index: int) -> Problem:
        problem = super().problem(split, seed, index % 4 if "repeat" in self.given else index)
        if "text" in self.given and index % 2:
            [message] = problem.messages
            text = [part for part in message["content"] if part["type"] == "text"]
            return replace(problem, images=[], messages=[{**message, "content": text}])
        return problem


HANGS = "digits-pick/train/3/1"
"""The problem with a conversation whose first reply hangs. Process 1 of two has it."""


class Wandering(SingleTurn):
    """Shows something up to three times; how often, and what, depends on its seed alone."""

    def __init__(self, task: Uneven, problem: Problem, seed: int) -> None:
        super().__init__(problem, task.tags, task.verdict)
        self.rng = random.Random(seed)
        self.rounds = self.rng.randrange(4)
        self.hangs = problem.id == HANGS and not task.hung
        task.hung |= self.hangs

    def reset(self) -> Observation | None:
        if not self.problem.environment_begins or self.hangs:
            return None
        return replace(self._shown(), done=self.rng.random() < 0.3)

    def step(self, said: PolicyTurn) -> Observation:
        if self.hangs:
            time.sleep(600)
        done = said.turn >= self.rounds
        return replace(self._shown(), done=done, channels=self._read(said, ANSWER, split=done))

    def _shown(self) -> Observation:
        words = "look " * self.rng.randrange(1, 5)
        if self.rng.random() < 0.5:
            return Observation(words)
        image = Image.frombytes("RGB", (40, 24), self.rng.randbytes(3 * 40 * 24))
        return Observation([{"type": "image"}, {"type": "text", "text": words}], [image])


class Talking(Uneven):
    """Conversations of one to four turns, of which one hangs."""

    limits = RolloutLimits(turns=4, step_threads=4, step_timeout_s=2.0)

    def __init__(self, given: dict[str, str]) -> None:
        super().__init__(given)
        self.hung = False

    def problem(self, split: str, seed: int, index: int) -> Problem:
        return replace(super().problem(split, seed, index), environment_begins=index % 2 == 1)

    def open(self, problem: Problem, seed: int) -> Episode:
        return Wandering(self, problem, seed)


def run(output: Path, way: str, given: dict[str, str], replay: Path | None = None) -> None:
    """Train to the end, from the beginning or from the newest checkpoint, and save the model."""
    lora = AdapterConfig(rank=2, dropout=0.1) if "lora" in given else None
    policy = Policy.load(
        PolicyConfig(
            path="builtin:digits",
            device="cpu",
            lora=lora,
            train_vision="vision" in given,
            dtype="bfloat16" if "low" in given else "float32",
        )
    )
    if "low" not in given:
        policy.model.double()
    training = Training(
        policy,
        (Talking if "talk" in given else Uneven)(given),
        make_method("adpo", kl=0.05),
        TrainerConfig(
            steps=int(given.get("steps", 2)),
            groups_per_step=int(given.get("groups", 5)),
            optim={"learning_rate": 1e-4, "channels": given.get("channels", "joint")},
            loss={"drop_zero_advantage": False},
            batch={
                "updates_per_rollout": int(given.get("updates", 2)),
                "micro_batch_groups": 2,
                "micro_batch_tokens": int(given.get("tokens", 16_384)),
            },
            checkpoint={"every": 1, "keep_last": 3, "rollout_log": "all" if "talk" in given else "auto"},
            log={"channels_every": int(given.get("measure", 0))},
        ),
        SamplingConfig(group_size=4, max_new_tokens=40),
        output,
        seed=3,
        resume="resume" in given,
        replay=replay,
    )
    learner = Trainer(training)
    if way == "fsdp":
        use_fsdp_on_cpu(learner)
    if "bad" in given:
        spoil(learner, int(given["bad"]))
    learner.run()
    learner.save_model(output / "model")
    if ranks.index() == 0:
        facts = {"count": ranks.count(), "root": type(policy.running.root).__name__}
        (output / "way.json").write_text(json.dumps(facts))


def main() -> None:
    way, *words = sys.argv[1:]
    faulthandler.dump_traceback_later(500, exit=True)  # a hang shows where
    torch.set_num_threads(1)
    ranks.start(cpu=True)
    for separated, group in groupby(words, "+".__eq__):
        if separated:
            continue
        output, *settings = group
        given = dict(setting.split("=") for setting in settings)
        # Sums in another order differ by rounding, which Adam may blow up.
        with nullcontext() if "low" in given else float64():
            run(Path(output), way, given)
            if "replay" in given:
                run(Path(output) / "again", way, given, Path(given["replay"]))


if __name__ == "__main__":
    main()
    ranks.stop()
