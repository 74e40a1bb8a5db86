"""A real vLLM on the CPU. Without it (`make vllm` installs it) the tests of this folder are skipped."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest
import requests

from selfverify.policy.loading import BUILTIN
from served import served
from serving_servers import Loop, quick_gateway

CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_SERVER_DEV_MODE": "1",
       "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}  # fmt: skip
"""What vLLM needs to share a small machine, to be told to forget, and to stay off the network."""
START_S = 1200
PROGRAMS = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of them take minutes, and need vLLM."""
    missing = importlib.util.find_spec("vllm") is None
    for item in items:
        if PROGRAMS in item.path.parents:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.skipif(missing, reason="vLLM is not installed: make vllm"))
            item.add_marker(pytest.mark.timeout(1800))


@dataclass
class Serving:
    """A vLLM server: its address, and the folder that it serves under the name ``m``."""

    url: str
    folder: Path

    def metric(self, name: str) -> float:
        """The sum over all labels of one of its Prometheus metrics."""
        lines = requests.get(f"{self.url}/metrics", timeout=10).text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.split("{")[0] == name)


@contextmanager
def serving(folder: Path, *more: str) -> Iterator[Serving]:
    """vLLM before a folder, in float32, with more of its options. What it prints goes to a file beside it."""
    # Not `vllm serve`: it asks for its version by a name that the CPU's package does not have.
    words = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--served-model-name", "m"]
    words += ["--enforce-eager", "--dtype", "float32", "--logprobs-mode", "processed_logprobs"]
    # On a CPU a request with a seed would end the server if its prompt were read in parts.
    words += ["--no-enable-chunked-prefill", *more]
    with served(words, folder.parent / "log", CPU, START_S) as url:
        yield Serving(url, folder)


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """vLLM before a copy of `builtin:digits`."""
    folder = shutil.copytree(BUILTIN / "digits", tmp_path_factory.mktemp("vllm") / "digits")
    with serving(folder, "--max-model-len", "1024", "--enable-scale-out") as found:
        yield found


@contextmanager
def openai_client(server: Serving, servers: Loop) -> Iterator[openai.OpenAI]:
    """OpenAI's client of a gateway before the server."""
    address = servers.gateway(quick_gateway(server.url, timeout_s=60.0))
    with openai.OpenAI(base_url=address, api_key="x", max_retries=0, timeout=120) as found:
        yield found
