"""Llama 3.2 Vision, whose images are no tokens: read by transformers' own forward, in prompts only."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.policy.conftest import noise_image
from transformers import AutoProcessor, MllamaConfig, MllamaForConditionalGeneration, MllamaProcessor
from transformers.models.mllama.image_processing_pil_mllama import MllamaImageProcessorPil
from transformers.models.mllama.processing_mllama import (
    convert_sparse_cross_attention_mask_to_dense,
    get_cross_attention_token_mask,
)

from rounding import assert_close
from selfverify.core.config import SamplingConfig
from selfverify.core.episode import Observation
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.policy.observation_encoding import ReplyEncoder, without_written_end
from selfverify.policy.policy import Policy
from selfverify.policy.tiny_models import tiny_tokenizer
from selfverify.tasks.base import user_turn
from tiny_models import write_checkpoint

SIDE = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three layers, of which the second looks at images; the image token lies outside what is written."""
    folder = tmp_path_factory.mktemp("mllama")
    tokenizer = tiny_tokenizer()
    # The last token, as in the released models: behind the last one that the head knows.
    words = -(-len(tokenizer) // 8) * 8
    tokenizer.add_special_tokens(
        {"additional_special_tokens": [f"<|free_{n}|>" for n in range(words - len(tokenizer))]},
        replace_extra_special_tokens=False,
    )
    tokenizer.add_special_tokens(
        {"additional_special_tokens": ["<|image|>"]}, replace_extra_special_tokens=False
    )
    slot = "<|vision_start|><|image_pad|><|vision_end|>"
    begin = tokenizer.convert_ids_to_tokens(words - 1)
    tokenizer.bos_token = begin
    tokenizer.chat_template = begin + tokenizer.chat_template.replace(slot, "<|image|>")
    sizes = {"hidden_size": 32, "intermediate_size": 48}
    vision = {
        "num_hidden_layers": 2, "num_global_layers": 1, "attention_heads": 2, "image_size": SIDE,
        "patch_size": 8, "intermediate_layers_indices": [1], "vision_output_dim": 64, "max_num_tiles": 4,
    }  # fmt: skip
    text = {
        "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 2,
        "cross_attention_layers": [1], "vocab_size": words, "bos_token_id": words - 1,
        "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id,
        "max_position_embeddings": 512, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }  # fmt: skip
    config = MllamaConfig(
        vision_config={**sizes, **vision}, text_config={**sizes, **text},
        image_token_index=tokenizer.convert_tokens_to_ids("<|image|>"),
    )  # fmt: skip
    torch.manual_seed(0)
    model = MllamaForConditionalGeneration(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "gate" in name:
                # A fresh model does not look: its gates are shut.
                parameter.fill_(1.0)
    write_checkpoint(folder, model, tokenizer)
    images = MllamaImageProcessorPil(size={"height": SIDE, "width": SIDE}, max_image_tiles=4)
    MllamaProcessor(images, tokenizer, chat_template=tokenizer.chat_template).save_pretrained(folder)
    return folder


@pytest.fixture
def policy(folder: Path) -> Policy:
    return Policy.load(str(folder), device="cpu")


@pytest.fixture(scope="module")
def problems() -> list[Problem]:
    return [
        Problem("two", user_turn("Compare these.", images=2), [noise_image(1), noise_image(2, 64, 32)]),
        Problem("none", user_turn("Say 7.", images=0)),
    ]


def raw_logits(folder: Path, problem: Problem, continuation: list[int]) -> torch.Tensor:
    """As a user of transformers gets them; text behind the prompt sees what the prompt's last token sees."""
    model = MllamaForConditionalGeneration.from_pretrained(folder, attn_implementation="eager")
    processor = AutoProcessor.from_pretrained(folder)
    text = processor.tokenizer.apply_chat_template(
        problem.messages, tokenize=False, add_generation_prompt=True
    )
    images = {"images": problem.images} if problem.images else {}
    made = dict(processor(text=[text], **images, add_special_tokens=False, return_tensors="pt"))
    prompt = made["input_ids"][0].tolist()
    ids = [*prompt, *continuation]
    made |= {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids))}
    if problem.images:
        tiles = [int(mask.sum()) for mask in made["aspect_ratio_mask"][0]]
        seen = get_cross_attention_token_mask(ids, processor.image_token_id)
        dense = convert_sparse_cross_attention_mask_to_dense([seen], [tiles], 4, len(ids))
        made["cross_attention_mask"] = torch.from_numpy(dense)
    return model(**made).logits[0, len(prompt) - 1 : -1]


def test_samples_and_their_logprobs(folder: Path, policy: Policy, problems: list[Problem]) -> None:
    """Greedy samples are the model's own, and depend on the images."""
    sampling = SamplingConfig(group_size=2, max_new_tokens=6, temperature=0, top_p=1.0)
    prompts = policy.encode(problems)
    groups = policy.sample(prompts, sampling, seeds=[3, 4])
    for problem, [sample, _] in zip(problems, groups, strict=True):
        logits = raw_logits(folder, problem, sample.tokens)
        logits[:, policy.suppressed_tokens] = float("-inf")
        assert sample.tokens == logits.argmax(-1).tolist()
        assert_close(sample.logprobs, logits.log_softmax(-1).amax(-1))
    swapped = Problem("two", problems[0].messages, problems[0].images[::-1])
    tokens = [[groups[0][0].tokens]]
    other = policy.logprobs(policy.encode([swapped]), tokens) - policy.logprobs(prompts[:1], tokens)
    assert other.abs().max() > 1e-3


def test_second_turns_without_images(policy: Policy, problems: list[Problem]) -> None:
    """What is heard and said later sees the prompt's images, in sampling as in learning."""
    sampling = SamplingConfig(group_size=2, max_new_tokens=6, top_p=1.0)
    prompts, writer = policy.encode(problems), ReplyEncoder(policy.encoder)
    threads = policy.threads(prompts, sampling, seeds=[1, 2])
    places = [(b, g) for b in range(2) for g in range(2)]
    first = threads.generate(dict.fromkeys(places, 0))
    replies = {(b, g): writer.encode(problems[b], Observation("Sure?"), 1) for b, g in places}
    asked = {place: without_written_end(first[place].tokens, reply) for place, reply in replies.items()}
    heard = threads.append(asked, score=True)
    second = threads.generate(dict.fromkeys(places, 1))
    for (b, g), piece in asked.items():
        said, tokens = first[b, g].tokens, second[b, g].tokens
        [[row]] = policy.logprobs([prompts[b]], [[[*said, *piece.tokens, *tokens]]])
        assert_close(heard[b, g], row[len(said) : -len(tokens)])
        assert_close(second[b, g].logprobs, row[-len(tokens) :])


def test_an_image_in_a_conversation_is_refused(policy: Policy, problems: list[Problem]) -> None:
    """It would be left out, or take the place of another one."""
    reply = Observation([{"type": "text", "text": "Look:"}, {"type": "image"}], [noise_image(3)])
    with pytest.raises(ConfigError, match=r"problem two, turn 1.*'mllama'.*in the middle"):
        ReplyEncoder(policy.encoder).encode(problems[0], reply, 1)
