"""Tiny policies that tests share: written once per session, in the form of any checkpoint folder."""

from __future__ import annotations

import os
import tempfile

# Before torch is imported: small models gain nothing from more threads, and threads that spin while they wait
# make tests many times slower where other programs want the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Before `datasets` is imported: what it makes of the tests' small files is of no use to anybody else.
os.environ.setdefault("HF_DATASETS_CACHE", f"{tempfile.gettempdir()}/selfverify-tests-{os.getuid()}/datasets")

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from benchmarks.families import sharpen
from transformers import AutoConfig, AutoModelForCausalLM
from transformers import Qwen2_5_VLForConditionalGeneration as TinyModel

from rounding import float64
from selfverify.policy.policy import Policy
from selfverify.policy.tiny_models import tiny_tokenizer, write_tiny
from tables import read_tables
from tiny_models import write_checkpoint


@pytest.fixture
def servers() -> Iterator[Any]:
    """A loop for servers; closed after the test, with everything that was opened in it."""
    from serving_servers import Loop

    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen2.5-VL policy of 2 layers with sharpened weights; three query heads share a key head."""
    folder = write_tiny(tmp_path_factory.mktemp("tiny"), hidden=96, layers=2)
    model = TinyModel.from_pretrained(folder)
    sharpen(model)
    model.save_pretrained(folder)
    return folder


TEXT_MODELS = read_tables(Path(__file__).with_suffix(".yaml"))


def _text_model(kind: str, vocabulary: int) -> Any:
    sizes = TEXT_MODELS["sizes"] | TEXT_MODELS["text_models"][kind]
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, vocab_size=vocabulary, **sizes))


@pytest.fixture(scope="session")
def text_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Text-only policies with the tiny tokenizer, by model type."""
    tokenizer = tiny_tokenizer()
    folders = {}
    for kind in TEXT_MODELS["text_models"]:
        folder = tmp_path_factory.mktemp(kind)
        write_checkpoint(folder, _text_model(kind, -(-len(tokenizer) // 16) * 16), tokenizer)
        folders[kind] = folder
    return folders


@pytest.fixture(scope="session")
def load_policy(tiny_folder: Path, text_folders: dict[str, Path]) -> Callable[..., Policy]:
    """``load_policy(kind="tiny", **settings)`` loads a fresh policy on the CPU."""

    def load(kind: str = "tiny", **settings: Any) -> Policy:
        folder = tiny_folder if kind == "tiny" else text_folders[kind]
        return Policy.load(str(folder), device="cpu", **settings)

    return load


@pytest.fixture
def in_float64() -> Iterator[Callable[[Policy], Policy]]:
    """``in_float64(policy)`` computes in float64 from then on, from the weights to the log-probabilities."""
    with ExitStack() as stack:

        def turn(policy: Policy) -> Policy:
            stack.enter_context(float64())
            policy.model.double()
            return policy

        yield turn


@pytest.fixture(scope="session")
def policy(load_policy: Callable[..., Policy]) -> Policy:
    """One tiny policy for tests that leave it as it is."""
    return load_policy()
