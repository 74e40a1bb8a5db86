"""The gateway before `transformers serve`, which ignores ``n`` and log-probs."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from served import served
from serving_servers import Loop, quick_gateway

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("fastapi", "uvicorn")),
        reason="transformers serve needs fastapi and uvicorn",
    ),
]
START_S = 120


Paths = pytest.TempPathFactory


@pytest.fixture(scope="module")
def server(text_folders: dict[str, Path], tmp_path_factory: Paths) -> Iterator[tuple[str, str]]:
    """Its address and its model, which has to say itself that it wants to be sampled."""
    folder = str(shutil.copytree(text_folders["llama"], tmp_path_factory.mktemp("model") / "llama"))
    config = Path(folder) / "generation_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"do_sample": True}))
    log = tmp_path_factory.mktemp("serve") / "log"
    program = "import sys; from transformers.cli.transformers import main; main()"
    words = ["-c", program, "serve", folder, "--device", "cpu"]
    with served(words, log, {"HF_HUB_OFFLINE": "1"}, START_S) as url:
        yield url, folder


@pytest.mark.parametrize("stream", [False, True])
def test_best_of_three(server: tuple[str, str], servers: Loop, stream: bool) -> None:
    """An untrained model says nothing sensible; what counts is that three different candidates come back."""
    url, model = server
    address = servers.gateway(quick_gateway(url, timeout_s=60.0))
    with openai.OpenAI(base_url=address, api_key="x", max_retries=0, timeout=120) as client:
        settings = {"best_of": {"n": 3, "samples": True, "verifier": "soft"}}
        messages = [{"role": "user", "content": "What is 7 + 2?"}]
        asked: Any = {"model": model, "messages": messages, "max_tokens": 12, "temperature": 2.0, "seed": 3}
        asked["extra_body"] = settings
        if stream:
            last = list(client.chat.completions.create(**asked, stream=True))[-1]
            found, finish = last.best_of, last.choices[0].finish_reason  # type: ignore[attr-defined]
        else:
            reply = client.chat.completions.create(**asked)
            found, finish = reply.best_of, reply.choices[0].finish_reason  # type: ignore[attr-defined]
            assert reply.usage is not None and 3 <= reply.usage.completion_tokens <= 36
    assert finish in ("stop", "length")
    assert (found["samples_used"], found["samples_missing"]) == (3, 0)
    assert len({sample["text"] for sample in found["samples"]}) == 3
