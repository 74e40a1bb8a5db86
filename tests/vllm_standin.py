"""What TRL 1.16 calls of a server with vLLM, on transformers' forward: real samples of a real model.

Nothing here knows this library's prompts, sampler or log-probs. As vLLM does, it bans by bias, reports
``processed_logprobs`` (after temperature, bias and top-p), keeps the stop token in ``token_ids``, and keeps
the features of images until it is told to forget them.
"""

from __future__ import annotations

import base64
import io
import json
import queue
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from aiohttp import web
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer, DynamicCache
from transformers import Qwen2_5_VLForConditionalGeneration as Model

from environment_servers import hosted
from selfverify.core.config import VLLMConfig
from serving_servers import Loop

PAD = "<|image_pad|>"


@dataclass
class SamplingParams:
    """The fields of `vllm.SamplingParams` that may come; another one is an error, as it is there."""

    n: int = 1
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 16
    logprobs: int | None = None
    stop_token_ids: list[int] = field(default_factory=list)
    logit_bias: dict[int, float] = field(default_factory=dict)
    output_kind: int = 0


class Core:
    """A model with its processor that answers requests."""

    def __init__(self, folder: str, dtype: str) -> None:
        self.dtype = getattr(torch, dtype)
        self.model = Model.from_pretrained(folder, dtype=self.dtype, attn_implementation="eager").eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.processor = AutoImageProcessor.from_pretrained(folder)
        self.pad = self.tokenizer.convert_tokens_to_ids(PAD)
        self.generator = torch.Generator().manual_seed(0)
        self.loads = 0
        self.calls = 0
        self.images: dict[bytes, torch.Tensor] = {}
        """Features by the image's pixels: `reset_encoder_cache` empties it, new weights do not."""
        self.tower = self.model.model.get_image_features
        self.model.model.get_image_features = self.features

    def features(self, pixels: torch.Tensor, grids: torch.Tensor, **_: Any) -> Any:
        """Each image passes through the tower once, whatever the weights are by then."""
        found = []
        for image, grid in zip(pixels.split(grids.prod(-1).tolist()), grids, strict=True):
            key = image.numpy().tobytes()
            if key not in self.images:
                self.images[key] = self.tower(image, grid[None], return_dict=True).pooler_output[0]
            found.append(self.images[key])
        return SimpleNamespace(pooler_output=tuple(found))

    def uniform(self, ids: list[int], images: list[Image.Image], rows: int, steps: int) -> torch.Tensor:
        """``[rows, steps]`` in [0, 1) for a prompt; tests may put their own draws here."""
        return torch.rand(rows, steps, generator=self.generator)

    def load_weights(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy; a name that the model does not have is an error."""
        own = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, tensor in named:
                assert own[name].shape == tensor.shape
                own[name].copy_(tensor)
        self.loads += 1

    def image_tokens(self, image: Image.Image) -> int:
        """Placeholders that one image takes."""
        grid = self.processor(images=[image], return_tensors="pt")["image_grid_thw"][0]
        return int(grid.prod()) // self.processor.merge_size**2

    @torch.no_grad()
    def complete(
        self, ids: list[int], images: list[Image.Image], params: SamplingParams
    ) -> list[list[tuple[int, float]]]:
        """``n`` completions of the expanded prompt ``ids``: tokens with their log-probs."""
        self.calls += 1
        draws = self.uniform(ids, images, params.n, params.max_tokens)
        inputs: dict[str, Any] = {}
        if images:
            seen = self.processor(images=images, return_tensors="pt")
            n = len(draws)
            inputs["pixel_values"] = seen["pixel_values"].repeat(n, 1)
            inputs["image_grid_thw"] = seen["image_grid_thw"].repeat(n, 1)
        fed = torch.tensor([ids]).repeat(len(draws), 1)
        kinds, grids = (fed == self.pad).int(), inputs.get("image_grid_thw")
        places, _ = self.model.model.get_rope_index(fed, kinds, image_grid_thw=grids)
        cache, mask = DynamicCache(), torch.ones_like(fed)
        stop = torch.tensor([*params.stop_token_ids, self.tokenizer.eos_token_id])
        ended = torch.zeros(len(draws), dtype=torch.bool)
        bias = torch.zeros(self.model.get_output_embeddings().weight.shape[0])
        for token, value in params.logit_bias.items():
            bias[int(token)] = value
        picked, values = [], []
        for step in range(params.max_tokens):
            logits = self.model(
                input_ids=fed, attention_mask=mask, position_ids=places, past_key_values=cache, **inputs
            ).logits[:, -1]
            logits = (logits.float() + bias) / params.temperature
            probs = logits.double().softmax(-1)
            ordered, order = probs.sort(dim=-1, descending=True)
            outside = ordered.cumsum(-1) - ordered >= params.top_p
            kept = probs.scatter(-1, order, ordered.masked_fill(outside, 0.0))
            below = kept.cumsum(-1) <= draws[:, step, None] * kept.sum(-1, keepdim=True)
            chosen = torch.minimum(below.sum(-1, keepdim=True), kept.cumsum(-1).argmax(-1, keepdim=True))
            values.append((kept.gather(-1, chosen) / kept.sum(-1, keepdim=True)).log()[:, 0])
            picked.append(chosen[:, 0])
            ended |= torch.isin(chosen[:, 0], stop)
            if bool(ended.all()):
                break
            fed, mask, inputs = chosen, torch.cat([mask, torch.ones_like(chosen)], dim=1), {}
            places = places.amax((0, 2), keepdim=True).expand(3, -1, 1) + 1
        made = []
        for row, logprobs in zip(
            torch.stack(picked, 1).tolist(), torch.stack(values, 1).tolist(), strict=True
        ):
            end = next((i + 1 for i, token in enumerate(row) if token in stop.tolist()), None)
            made.append([*zip(row[:end], logprobs[:end], strict=True)])
        return made


# --- server -------------------------------------------------------------------------------------------------


def _picture(url: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(url.split(",")[-1]))).convert("RGB")


def _fields(body: dict[str, Any]) -> dict[str, Any]:
    return {name: body[name] for name in SamplingParams.__dataclass_fields__ if body.get(name) is not None}


class Server:
    """The routes of `vllm serve` that TRL's client calls, on a free loopback port."""

    def __init__(self, folder: str, dtype: str = "float32") -> None:
        self.core = Core(folder, dtype)
        self.logprobs_mode = "processed_logprobs"
        self.version = "0.31.0"
        self.weights: queue.Queue[list[tuple[str, torch.Tensor]]] = queue.Queue()
        self.paths: list[str] = []
        self.url = ""

    @property
    def config(self) -> VLLMConfig:
        """What `sampling.vllm` says to sample here."""
        return VLLMConfig(server_base_url=self.url, server_timeout_s=5)

    @property
    def overrides(self) -> list[str]:
        """The same for a recipe."""
        return ["sampling.engine=vllm", f"sampling.vllm.server_base_url={self.url}"]

    @contextmanager
    def running(self) -> Iterator[Server]:
        """Serves inside."""
        loop = Loop()
        try:
            self.url = loop.run(hosted(loop.stack, web.route("*", "/{path:.*}", self._handle)))
            yield self
        finally:
            loop.close()

    async def _handle(self, request: web.Request) -> web.Response:
        self.paths.append(request.path)
        try:
            return web.json_response(self.answer(request.path, json.loads(await request.read() or b"{}")))
        except Exception as error:  # a server reports its faults
            return web.json_response({"error": repr(error)}, status=400)

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """One request."""
        if path == "/v1/models":
            return {"data": [{"id": "standin"}]}
        if path == "/server_info":
            model = {"logprobs_mode": self.logprobs_mode, "dtype": str(self.core.dtype)}
            return {"vllm_config": {"model_config": model, "weight_transfer_config": {}}}
        if path == "/version":
            return {"version": self.version}
        if path == "/reset_encoder_cache":
            self.core.images.clear()
            return {}
        if path == "/update_weights":
            info, received = body["update_info"], self.weights.get(timeout=30)
            assert info["names"] == [name for name, _ in received]
            assert info["shapes"] == [list(tensor.shape) for _, tensor in received]
            self.core.load_weights(received)
            return {}
        if path == "/v1/completions":
            return self._completions(body)
        if path == "/v1/chat/completions/render":
            parts = [part for message in body["messages"] for part in message["content"]]
            data = [part["image_url"]["url"] for part in parts]
            lengths = [self.core.image_tokens(_picture(url)) for url in data]
            places = [{"offset": 0, "length": length} for length in lengths]
            return {"features": {"mm_placeholders": {"image": places}, "kwargs_data": {"image": data}}}
        if path == "/inference/v1/generate":
            return self._from_features(body)
        assert path in ("/health", "/start_weight_update", "/finish_weight_update", "/reset_prefix_cache")
        return {}

    def _completions(self, body: dict[str, Any]) -> dict[str, Any]:
        params = SamplingParams(**_fields(body))
        choices = []
        for ids in body["prompt"]:
            for output in self.core.complete(ids, [], params):
                told = [(f"token_id:{token}", value) for token, value in output]
                names, values = ([*column] for column in zip(*told, strict=True))
                tops = [{name: value} for name, value in told]
                logprobs = {"tokens": names, "token_logprobs": values, "top_logprobs": tops}
                choices.append(
                    {"prompt_token_ids": ids, "token_ids": [t for t, _ in output], "logprobs": logprobs}
                )
        return {"choices": choices}

    def _from_features(self, body: dict[str, Any]) -> dict[str, Any]:
        params = SamplingParams(**body["sampling_params"])
        features, ids, images = body["features"], body["token_ids"], []
        if features is not None:
            images = [_picture(url) for url in features["kwargs_data"]["image"]]
            for image, place in zip(images, features["mm_placeholders"]["image"], strict=True):
                run = ids[place["offset"] : place["offset"] + place["length"]]
                assert run == [self.core.pad] * self.core.image_tokens(image), "image and places differ"
        outputs = self.core.complete(ids, images, params)
        choices = []
        for output in outputs if params.output_kind == 2 else outputs[-1:]:
            content = [
                {"token": f"token_id:{token}", "logprob": value, "top_logprobs": []}
                for token, value in output
            ]
            choices.append({"token_ids": [t for t, _ in output], "logprobs": {"content": content}})
        return {"choices": choices}


class Transfer:
    """`NCCLWeightTransferEngine`: the tensors arrive on the other side, here through a queue."""

    @staticmethod
    def trainer_send_weights(iterator: Iterator[tuple[str, torch.Tensor]], trainer_args: Any) -> None:
        """Broadcast; copies, since the sender's buffers are its own."""
        trainer_args["group"].weights.put([(name, tensor.clone()) for name, tensor in iterator])


@contextmanager
def standing_in(monkeypatch: Any, folder: str | Path, dtype: str = "float32") -> Iterator[Server]:
    """`vllm serve` of a folder, where TRL looks for it."""
    pytest.importorskip("trl.generation.vllm_generation", exc_type=ImportError)
    pytest.importorskip("requests")
    server = Server(str(folder), dtype)
    install(monkeypatch, server)
    with server.running():
        yield server


def install(monkeypatch: Any, server: Server | None) -> None:
    """Put the stand-in where TRL has imported vLLM's names."""
    from trl.generation import vllm_client, vllm_generation

    module = ModuleType("vllm")
    module.__dict__.update(__version__="0.31.0", __spec__=ModuleSpec("vllm", None))
    monkeypatch.setitem(sys.modules, "vllm", module)
    for module in (vllm_client, vllm_generation):
        monkeypatch.setattr(module, "is_vllm_available", lambda min_version=None: True)

    def communicator(client: Any, device: Any) -> None:
        client.communicator = SimpleNamespace(group=SimpleNamespace(), weights=server and server.weights)

    monkeypatch.setattr(vllm_client.VLLMClient, "init_communicator", communicator)
    monkeypatch.setattr(vllm_client, "_HAS_STATEFUL_TRAINER_ENGINE", False)
    monkeypatch.setattr(vllm_client, "NCCLWeightTransferEngine", Transfer, raising=False)
    monkeypatch.setattr(vllm_client, "NCCLTrainerSendWeightsArgs", dict, raising=False)
