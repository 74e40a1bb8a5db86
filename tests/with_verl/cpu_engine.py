"""verl's engine and rollouts on a CPU; ``VERL_USE_EXTERNAL_MODULES`` names this module.

It registers verl's FSDP engine for the platform of `cpu_platform`, and a rollout server that is transformers'
``generate`` in a Ray actor. Two of verl's names are replaced: its group of processes names the device twice
on a CPU, and offloading to a CPU pins memory, which needs a GPU.
"""

import asyncio
import os
from pathlib import Path

import ray
import torch
import verl.utils.distributed
import verl.workers.engine.fsdp.transformer_impl
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from torch.distributed.fsdp import CPUOffloadPolicy
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
)
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry
from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput


def _start_group(timeout_second=None, backend=None):
    if not torch.distributed.is_initialized():
        rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        torch.distributed.init_process_group("gloo", rank=rank, world_size=world)


verl.utils.distributed.initialize_global_process_group_ray = _start_group
verl.workers.engine.fsdp.transformer_impl.CPUOffloadPolicy = lambda pin_memory=True: CPUOffloadPolicy(
    pin_memory=False
)
EngineRegistry.register("language_model", ["fsdp", "fsdp2"], "cpu")(FSDPEngineWithLMHead)


@ray.remote
class GenerateServer:
    """Samples one conversation at a time with transformers' ``generate``."""

    def __init__(self, path, limit):
        torch.set_num_threads(1)
        sees = hasattr(AutoConfig.from_pretrained(path), "vision_config")
        kind = AutoModelForImageTextToText if sees else AutoModelForCausalLM
        self.model = kind.from_pretrained(path, dtype=torch.float32).eval()
        self.tokenizer, self.processor = (
            AutoTokenizer.from_pretrained(path),
            AutoProcessor.from_pretrained(path),
        )
        self.limit, self.steps = limit, 0

    def ready(self):
        return True

    def load(self, state, adapter, global_steps):
        """Take all weights, or those of an adapter with these settings."""
        if adapter is None:
            found = self.model.load_state_dict(state, strict=False)
        else:
            if not hasattr(self.model, "peft_config"):
                self.model = get_peft_model(self.model, LoraConfig(**adapter)).eval()
            found = set_peft_model_state_dict(self.model, state)
        assert not found.unexpected_keys
        self.steps = global_steps

    @torch.no_grad()
    def generate(self, prompt_ids, sampling_params, request_id, image_data=None, video_data=None, **more):
        ids, extra = torch.tensor([list(prompt_ids)]), {}
        if image_data:
            made = self.processor.image_processor(images=image_data, return_tensors="pt")
            extra = {"pixel_values": made["pixel_values"], "image_grid_thw": made["image_grid_thw"]}
            extra["mm_token_type_ids"] = (ids == self.model.config.image_token_id).long()
        made = self.model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=1.0,
            top_k=0, top_p=1.0,
            max_new_tokens=int(sampling_params.get("max_tokens") or self.limit), return_dict_in_generate=True,
            output_logits=True, pad_token_id=self.tokenizer.pad_token_id, **extra,
        )  # fmt: skip
        new = made.sequences[0, ids.shape[1] :].tolist()
        rows = zip(made.logits, new, strict=True)
        return TokenOutput(
            token_ids=new,
            log_probs=[float(row[0].float().log_softmax(-1)[token]) for row, token in rows],
            stop_reason="completed" if new[-1] == self.tokenizer.eos_token_id else "length",
            num_preempted=0,
            extra_fields={"global_steps": self.steps},
        )


class GenerateReplica(RolloutReplica):
    async def launch_servers(self):
        name = f"generate_{self.replica_rank}"
        server = GenerateServer.options(name=name, max_concurrency=1, num_cpus=0).remote(
            self.model_config.path, self.config.response_length
        )
        await server.ready.remote()
        self.servers, self._server_handle, self._server_address = [server], server, name

    async def _nothing(self, *args, **kwargs):
        pass

    wake_up = sleep = abort_all_requests = resume_generation = _nothing
    clear_kv_cache = release_kv_cache = resume_kv_cache = _nothing


class GenerateRollout(BaseRollout):
    def __init__(self, *given, replica_rank=-1, **more):
        super().__init__(*given, **more)
        self.server = f"generate_{replica_rank if replica_rank >= 0 else os.environ['RANK']}"

    async def resume(self, tags):
        pass

    async def release(self):
        pass

    async def update_weights(self, weights, peft_config=None, global_steps=None, **more):
        pairs = [pair async for pair in weights] if hasattr(weights, "__aiter__") else weights
        state = {name: tensor.detach().float().cpu().clone() for name, tensor in pairs}
        await ray.get_actor(self.server).load.remote(state, peft_config, global_steps)


@CheckpointEngineRegistry.register("file")
class FileCheckpoint(CheckpointEngine):
    """Weights travel to servers of their own by a file."""

    def __init__(self, **given):
        self.rank = None

    def prepare(self):
        return {}

    @classmethod
    def build_topology(cls, actors, servers, metadata):
        return {"rank": list(range(actors))}, {"rank": [None] * servers}

    def init_process_group(self, rank):
        self.rank = rank

    def finalize(self):
        pass

    def _path(self, step):
        return Path(os.environ["SELFVERIFY_RECORD"]) / f"weights-{step}.pt"

    async def send_weights(self, weights, global_steps=None):
        state = {name: tensor.detach().cpu().clone() for name, tensor in weights}
        if self.rank == 0:
            half = self._path("half")
            torch.save(state, half)
            half.replace(self._path(global_steps))

    async def receive_weights(self, global_steps=None):
        while not self._path(global_steps).exists():
            await asyncio.sleep(0.1)
        for pair in torch.load(self._path(global_steps)).items():
            yield pair


RolloutReplicaRegistry.register("generate", lambda: GenerateReplica)
_ROLLOUT_REGISTRY["generate", "async"] = "cpu_engine.GenerateRollout"
