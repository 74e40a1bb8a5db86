"""One of two processes that sample on one server: ``vllm_process.py MODEL_FOLDER RANK PORT OUTPUT``."""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

import vllm_standin
from selfverify.core import ranks
from selfverify.core.config import SamplingConfig, VLLMConfig
from selfverify.core.problem import Problem
from selfverify.experiments.registry import make_task
from selfverify.policy.policy import Policy
from selfverify.policy.vllm import VLLMEngine
from selfverify.tasks.base import user_turn
from selfverify.trainer.parallel import make_accelerator
from vllm_standin import Server


def main(folder: str, rank: int, port: str, output: Path) -> None:
    """The first process has two problems with images, the second one without, then none."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks.start(cpu=True)
    server = Server(folder) if rank == 0 else None
    vllm_standin.install(pytest.MonkeyPatch(), server)
    with server.running() if server else nullcontext():
        policy = Policy.load(folder, device="cpu")
        where = server.config if server else VLLMConfig(server_base_url="http://127.0.0.1:9")
        sampling = SamplingConfig(engine="vllm", vllm=where, group_size=2, max_new_tokens=4, top_p=1.0)
        policy.engine = VLLMEngine(policy, make_accelerator(policy), where)
        task = make_task("digits-pick")
        of_images = [task.problem("train", 0, index) for index in range(2)]
        rounds = (
            [of_images, of_images] if rank == 0 else [[Problem("text", user_turn("Say 7.", images=0))], []]
        )
        found = []
        for problems in rounds:
            prompts = policy.encode(problems)
            groups = policy.sample(prompts, sampling, seeds=[0] * len(problems))
            tokens = [[sample.tokens for sample in group] for group in groups]
            ours = policy.logprobs(prompts, tokens).tolist() if groups else []
            theirs = [[sample.logprobs for sample in group] for group in groups]
            found.append({"ids": [p.problem_id for p in prompts], "ours": ours, "theirs": theirs})
        output.write_text(json.dumps(found))
        ranks.gather(None)  # the server stays until all have been served


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
