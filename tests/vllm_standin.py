"""What TRL 1.16 touches of vLLM, on transformers' forward: real samples of a real model, without vLLM.

Nothing here knows this library's prompts, sampler or log-probs. As vLLM does, it expands image slots itself
(and expands once more what is expanded already), bans by bias, reports ``processed_logprobs`` (after
temperature, bias and top-p), keeps the stop token in ``token_ids``, and forgets its weights in sleep level 2.
It keeps the features of images until it is told to forget them, and computes in bfloat16 where a folder holds
float32, unless it is given a precision.
"""

from __future__ import annotations

import base64
import io
import json
import queue
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer, DynamicCache
from transformers import Qwen2_5_VLForConditionalGeneration as Model

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

    def __init__(self, folder: str, dtype: str = "auto") -> None:
        self.dtype = getattr(torch, "bfloat16" if dtype == "auto" else dtype)
        self.model = Model.from_pretrained(folder, dtype=self.dtype, attn_implementation="eager").eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.processor = AutoImageProcessor.from_pretrained(folder)
        self.pad = self.tokenizer.convert_tokens_to_ids(PAD)
        self.generator = torch.Generator().manual_seed(0)
        self.loads = 0
        self.calls: list[int] = []
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

    def uniform(self, rows: int, steps: int) -> torch.Tensor:
        """``[rows, steps]`` in [0, 1); tests may put their own draws here."""
        return torch.rand(rows, steps, generator=self.generator)

    def forget(self) -> None:
        """Sleep level 2: the weights are gone."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.fill_(torch.nan)

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

    def expand(self, ids: Sequence[int], images: Sequence[Image.Image]) -> list[int]:
        """Each image takes the place of the next placeholder that stands there."""
        found, rest = [], list(ids)
        for image in images:
            place = rest.index(self.pad)
            found += rest[:place] + [self.pad] * self.image_tokens(image)
            rest = rest[place + 1 :]
        return found + rest

    @torch.no_grad()
    def complete(
        self, ids: list[int], images: Sequence[Image.Image], params: SamplingParams, draws: torch.Tensor
    ) -> list[Any]:
        """One completion per row of ``draws`` to the expanded prompt ``ids``."""
        inputs: dict[str, Any] = {}
        if images:
            made = self.processor(images=list(images), return_tensors="pt")
            n = len(draws)
            inputs["pixel_values"] = made["pixel_values"].repeat(n, 1)
            inputs["image_grid_thw"] = made["image_grid_thw"].repeat(n, 1)
        # Image tokens that no feature belongs to are ordinary ones to vLLM, which does not complain.
        features = sum(self.image_tokens(image) for image in images)
        fed = torch.tensor([ids]).repeat(len(draws), 1)
        surplus = (fed == self.pad) & ((fed == self.pad).cumsum(1) > features)
        fed = fed.masked_fill(surplus, self.tokenizer.eos_token_id)
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
            assert not logits.isnan().any(), "vLLM samples without weights"
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
        outputs = []
        drawn, told = torch.stack(picked, 1).tolist(), torch.stack(values, 1).tolist()
        for row, logprobs in zip(drawn, told, strict=True):
            end = next((i + 1 for i, token in enumerate(row) if token in stop.tolist()), None)
            tokens, kept_values = row[:end], logprobs[:end]
            values_of = [SimpleNamespace(logprob=value, rank=1) for value in kept_values]
            outputs.append(
                SimpleNamespace(
                    token_ids=tokens,
                    logprobs=[{token: value} for token, value in zip(tokens, values_of, strict=True)],
                    finish_reason="length" if end is None else "stop",
                )
            )
        return outputs

    def generate(
        self, requests: Sequence[tuple[list[int], list[Image.Image]]], params: SamplingParams
    ) -> list[list[Any]]:
        """``n`` completions of each request; equal neighbours are forwarded together."""
        self.calls.append(len(requests))
        draws = self.uniform(len(requests) * params.n, params.max_tokens)
        results: list[list[Any]] = []
        start = 0
        while start < len(requests):
            ids, images = requests[start]
            end = start
            while end < len(requests) and requests[end][0] == ids and requests[end][1] == images:
                end += 1
            made = self.complete(ids, images, params, draws[start * params.n : end * params.n])
            results += [made[i : i + params.n] for i in range(0, len(made), params.n)]
            start = end
        return results


class LLM:
    """`vllm.LLM` in the training process."""

    made: list[LLM] = []

    def __init__(
        self,
        model: str,
        *,
        tensor_parallel_size: int,
        gpu_memory_utilization: float,
        max_model_len: int | None,
        max_num_seqs: int | None,
        enable_sleep_mode: bool,
        model_impl: str,
        distributed_executor_backend: str,
        seed: int,
        max_num_batched_tokens: int,
        logprobs_mode: str,
        quantization: str | None,
        trust_remote_code: bool,
        dtype: str = "auto",
    ) -> None:
        assert logprobs_mode == "processed_logprobs"
        self.core = Core(model, dtype)
        runner = SimpleNamespace(model=SimpleNamespace(load_weights=self.core.load_weights))
        worker = SimpleNamespace(model_runner=runner)
        executor = SimpleNamespace(driver_worker=worker)
        forget = self.core.images.clear
        self.llm_engine = SimpleNamespace(model_executor=executor, reset_encoder_cache=forget)
        self.resets = 0
        LLM.made.append(self)

    def reset_prefix_cache(self) -> bool:
        """After new weights."""
        self.resets += 1
        return True

    def sleep(self, level: int = 1) -> None:
        """Level 2 drops the weights."""
        if level == 2:
            self.core.forget()

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Memory is there again; what was in it is not."""

    def generate(
        self, prompts: list[dict[str, Any]], sampling_params: SamplingParams, use_tqdm: bool = True
    ) -> list[Any]:
        """Outputs in the order of the prompts."""
        requests = []
        for prompt in prompts:
            images = prompt.get("multi_modal_data", {}).get("image", [])
            images = images if isinstance(images, list) else [images]
            requests.append((self.core.expand(prompt["prompt_token_ids"], images), images))
        made = self.core.generate(requests, sampling_params)
        return [
            SimpleNamespace(prompt_token_ids=ids, outputs=outputs)
            for (ids, _), outputs in zip(requests, made, strict=True)
        ]


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
        self.lock = threading.Lock()
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    @contextmanager
    def running(self) -> Iterator[Server]:
        """Serves inside."""
        thread = threading.Thread(target=self.http.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.http.shutdown()
            self.http.server_close()
            thread.join(timeout=10)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self, body: dict[str, Any]) -> None:
                path = self.path.split("?")[0]
                with server.lock:
                    server.paths.append(path)
                    try:
                        status, found = 200, server.answer(path, body)
                    except Exception as error:  # a server reports its faults
                        status, found = 400, {"error": repr(error)}
                data = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self) -> None:
                self._answer({})

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                self._answer(json.loads(self.rfile.read(length) or b"{}"))

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler

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
        made = self.core.generate([(ids, []) for ids in body["prompt"]], params)
        for ids, outputs in zip(body["prompt"], made, strict=True):
            for output in outputs:
                names = [f"token_id:{token}" for token in output.token_ids]
                values = [next(iter(entry.values())).logprob for entry in output.logprobs]
                tops = [{name: value} for name, value in zip(names, values, strict=True)]
                logprobs = {"tokens": names, "token_logprobs": values, "top_logprobs": tops}
                choices.append({"prompt_token_ids": ids, "token_ids": output.token_ids, "logprobs": logprobs})
        return {"choices": choices}

    def _from_features(self, body: dict[str, Any]) -> dict[str, Any]:
        params = SamplingParams(**body["sampling_params"])
        features, ids, images = body["features"], body["token_ids"], []
        if features is not None:
            images = [_picture(url) for url in features["kwargs_data"]["image"]]
            for image, place in zip(images, features["mm_placeholders"]["image"], strict=True):
                run = ids[place["offset"] : place["offset"] + place["length"]]
                assert run == [self.core.pad] * self.core.image_tokens(image), "image and places differ"
        [outputs] = self.core.generate([(ids, images)], params)
        choices = []
        for output in outputs if params.output_kind == 2 else outputs[-1:]:
            content = [
                {"token": f"token_id:{token}", "logprob": entry[token].logprob, "top_logprobs": []}
                for token, entry in zip(output.token_ids, output.logprobs, strict=True)
            ]
            choices.append({"token_ids": output.token_ids, "logprobs": {"content": content}})
        return {"choices": choices}


class Transfer:
    """`NCCLWeightTransferEngine`: the tensors arrive on the other side, here through a queue."""

    @staticmethod
    def trainer_send_weights(iterator: Iterator[tuple[str, torch.Tensor]], trainer_args: Any) -> None:
        """Broadcast; copies, since the sender's buffers are its own."""
        trainer_args["group"].weights.put([(name, tensor.clone()) for name, tensor in iterator])


def install(monkeypatch: Any, server: Server | None = None) -> None:
    """Put the stand-in where TRL has imported vLLM's names."""
    from trl.generation import vllm_client, vllm_generation

    module = ModuleType("vllm")
    module.__dict__.update(__version__="0.31.0", __spec__=ModuleSpec("vllm", None))
    monkeypatch.setitem(sys.modules, "vllm", module)
    for module in (vllm_client, vllm_generation):
        monkeypatch.setattr(module, "is_vllm_available", lambda min_version=None: True)
    monkeypatch.setattr(vllm_generation, "LLM", LLM, raising=False)
    monkeypatch.setattr(vllm_generation, "SamplingParams", SamplingParams, raising=False)
    monkeypatch.setattr(LLM, "made", [])

    def communicator(client: Any, device: Any) -> None:
        client.communicator = SimpleNamespace(group=SimpleNamespace(), weights=server and server.weights)

    monkeypatch.setattr(vllm_client.VLLMClient, "init_communicator", communicator)
    monkeypatch.setattr(vllm_client, "_HAS_STATEFUL_TRAINER_ENGINE", False)
    monkeypatch.setattr(vllm_client, "NCCLWeightTransferEngine", Transfer, raising=False)
    monkeypatch.setattr(vllm_client, "NCCLTrainerSendWeightsArgs", dict, raising=False)
