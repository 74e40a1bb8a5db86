"""A small training run as a program for one or several processes.

Usage: several.py MODEL OUTPUT WAY [SETTING=VALUE ...] where WAY is alone, ddp or fsdp.
"""

import faulthandler
import json
import os
import sys
from pathlib import Path

import torch

from selfverify import ranks
from selfverify.learner.config import LearnerConfig
from selfverify.learner.loop import Learner
from selfverify.methods import make_method
from selfverify.policy.config import LoraSettings, PolicyConfig, SamplingConfig
from selfverify.policy.policy import Policy
from selfverify.tasks import make_task


def use_fsdp_on_cpu(learner: Learner) -> None:
    """accelerate offers FSDP on accelerators only; here it is told that this is one."""
    from accelerate import FullyShardedDataParallelPlugin, PartialState
    from accelerate.utils import DistributedType

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", cpu_ram_efficient_loading=False
    )
    learner.accelerator.state.fsdp_plugin = plugin
    learner.accelerator.state.distributed_type = DistributedType.FSDP
    PartialState._shared_state["distributed_type"] = DistributedType.FSDP


def main() -> None:
    faulthandler.dump_traceback_later(40, exit=True)  # a hang is to show where
    model, output, way, *settings = sys.argv[1:]
    given = dict(setting.split("=") for setting in settings)
    torch.set_num_threads(1)
    ranks.start(cpu=True)
    config = PolicyConfig(
        path=model, device="cpu", lora=LoraSettings(rank=2) if "lora" in given else None
    )
    policy = Policy.load(config)
    if "double" in given:
        policy.model.double()
    learner = Learner(
        policy,
        make_task("digits-pick"),
        make_method(given.get("method", "adpo"), kl=0.05),
        LearnerConfig(
            steps=int(given.get("steps", 3)),
            groups_per_step=int(given.get("groups", 5)),
            updates_per_rollout=int(given.get("updates", 2)),
            micro_batch_groups=2,
            learning_rate=float(given.get("rate", 1e-3)),
            checkpoint_every=1,
            drop_zero_advantage=False,
        ),
        SamplingConfig(group_size=4, max_new_tokens=40),
        Path(output),
        seed=int(given.get("seed", 3)) + (ranks.index() if "disagree" in given else 0),
    )
    if way == "zero":
        print("ZERO", learner.accelerator.distributed_type)
    if way == "fsdp":
        use_fsdp_on_cpu(learner)
    learner.run(resume="resume" in given)
    weights = learner.parallel.weights()
    if ranks.index() == 0:
        policy.save(Path(output) / "model", weights)
        Path(output, "way.json").write_text(
            json.dumps({"count": ranks.count(), "root": type(policy.root).__name__, "pid": os.getpid()})
        )


if __name__ == "__main__":
    main()
