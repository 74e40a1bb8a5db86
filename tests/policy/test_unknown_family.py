"""Families without code of ours (LLaVA 1.5, Llama 3.2 Vision, PaliGemma) go by transformers' own forward."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.policy.conftest import assert_learners, noise_image
from transformers import (
    AutoProcessor,
    GenerationConfig,
    GenerationMixin,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    MllamaConfig,
    MllamaForConditionalGeneration,
    MllamaProcessor,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    PaliGemmaProcessor,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.mllama.image_processing_pil_mllama import MllamaImageProcessorPil
from transformers.models.mllama.processing_mllama import (
    convert_sparse_cross_attention_mask_to_dense,
    get_cross_attention_token_mask,
)
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from rounding import assert_close
from selfverify.core.config import SamplingConfig
from selfverify.core.episode import Observation
from selfverify.core.errors import ConfigError, DataError, SamplingError
from selfverify.core.problem import Problem
from selfverify.policy.observation_encoding import ReplyEncoder, without_written_end
from selfverify.policy.packing import Continuation
from selfverify.policy.policy import Policy
from selfverify.policy.recomputing_sessions import RecomputingSession
from selfverify.policy.tiny_models import tiny_tokenizer
from selfverify.tasks.base import user_turn
from tables import read_tables, yaml_cases
from tiny_models import write_checkpoint

CONTINUATIONS = [[[70, 71, 72, 73], [75], []], [[80, 81], [82], [83, 84, 85]]]
SLOT = "<|vision_start|><|image_pad|><|vision_end|>"
SAMPLING = SamplingConfig(group_size=3, max_new_tokens=6, top_p=1.0)
TWO, NONE = PROBLEMS = [
    Problem("two", user_turn("Compare these.", images=2), [noise_image(1), noise_image(2, 64, 32)]),
    Problem("none", user_turn("Say 7.", images=0)),
]


def named_special(tokenizer: Any, *tokens: str) -> None:
    """Add special tokens of these names."""
    tokens_of = {"additional_special_tokens": list(tokens)}
    tokenizer.add_special_tokens(tokens_of, replace_extra_special_tokens=False)


def processed(folder: Path, problem: Problem) -> dict[str, Any]:
    """A prompt as the model's own processor reads it."""
    processor = AutoProcessor.from_pretrained(folder)
    text = processor.tokenizer.apply_chat_template(
        problem.messages, tokenize=False, add_generation_prompt=True
    )
    images = {"images": problem.images} if problem.images else {}
    return dict(processor(text=[text], **images, add_special_tokens=False, return_tensors="pt"))


def own_samples(policy: Policy, logits_of: Callable[[Problem, list[int]], torch.Tensor]) -> list[Any]:
    """Greedy samples, which are the likeliest tokens of transformers' ``logits_of``."""
    greedy = SAMPLING.model_copy(update={"temperature": 0.0})
    groups = policy.sample(policy.encode(PROBLEMS), greedy, seeds=[3, 4])
    for problem, group in zip(PROBLEMS, groups, strict=True):
        for sample in group:
            logprobs = logits_of(problem, sample.tokens).log_softmax(-1)
            taken = logprobs.gather(-1, torch.tensor(sample.tokens)[:, None])[:, 0]
            assert_close(sample.logprobs, taken)
            logprobs[:, policy.suppressed_tokens] = float("-inf")
            assert sample.tokens == logprobs.argmax(-1).tolist()
    return groups


def parts(name: str, text: dict[str, Any]) -> dict[str, Any]:
    """The settings of a model's two parts; ``text`` is what its tokenizer says."""
    stored = read_tables(Path(__file__).with_suffix(".yaml"))[name]
    both = {part: stored["sizes"] | stored[part] for part in ("vision", "text")}
    return {"vision_config": both["vision"], "text_config": both["text"] | text}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llava")
    tokenizer = tiny_tokenizer()
    named_special(tokenizer, "<image>")
    tokenizer.chat_template = tokenizer.chat_template.replace(SLOT, "<image>")
    text = {"vocab_size": -(-len(tokenizer) // 16) * 16, "eos_token_id": tokenizer.eos_token_id}
    image = tokenizer.convert_tokens_to_ids("<image>")
    config = LlavaConfig(**parts("llava", text), image_token_id=image)
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(config)
    write_checkpoint(folder, model, tokenizer)
    size = {"height": 32, "width": 32}
    LlavaProcessor(
        CLIPImageProcessorPil(size=size, crop_size=size, do_center_crop=False), tokenizer,
        patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1,
    ).save_pretrained(folder)  # fmt: skip
    return folder


@pytest.fixture
def policy(folder: Path, caplog: pytest.LogCaptureFixture) -> Policy:
    with caplog.at_level(logging.WARNING):
        loaded = Policy.load(str(folder), device="cpu")
    assert "'llava' is not known" in caplog.text
    return loaded


def raw_logits(folder: Path, problem: Problem, continuation: list[int]) -> torch.Tensor:
    model = LlavaForConditionalGeneration.from_pretrained(folder, attn_implementation="eager")
    made = processed(folder, problem)
    start = made["input_ids"].shape[1]
    made["input_ids"] = torch.cat([made["input_ids"], torch.tensor([continuation], dtype=torch.long)], dim=1)
    made["attention_mask"] = torch.ones_like(made["input_ids"])
    return model(**made).logits[0, start - 1 : -1]


def test_logprobs_and_gradients(folder: Path, policy: Policy) -> None:
    found = policy.logprobs(policy.encode(PROBLEMS), CONTINUATIONS)
    for b, group in enumerate(CONTINUATIONS):
        for g, continuation in enumerate(group):
            if continuation:
                logprobs = raw_logits(folder, PROBLEMS[b], continuation).log_softmax(-1)
                expected = logprobs.gather(-1, torch.tensor(continuation)[:, None])[:, 0]
                assert_close(found[b, g, : len(continuation)], expected)
    found.sum().backward()
    assert policy.model.model.language_model.layers[0].mlp.up_proj.weight.grad.abs().sum() > 0
    frozen = policy.loaded.family.vision_parameters(policy.model)
    assert len(frozen) > 10 and all(p.grad is None for p in frozen)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_are_no_samples(folder: Path, policy: Policy, temperature: float) -> None:
    sampling = SAMPLING.model_copy(update={"temperature": temperature})
    prompts = policy.encode(PROBLEMS)
    policy.sample(prompts[:1], sampling, seeds=[3])
    with torch.no_grad():
        policy.model.lm_head.weight[3, 4] = torch.nan
    with pytest.raises(SamplingError, match=rf"{folder}: its logits are not finite"):
        policy.sample(prompts, sampling, seeds=[3, 4])


def test_samples(folder: Path, policy: Policy) -> None:
    own_samples(policy, lambda problem, tokens: raw_logits(folder, problem, tokens))
    prompts, state = policy.encode(PROBLEMS), torch.random.get_rng_state()
    groups = policy.sample(prompts, SAMPLING, seeds=[3, 4])
    assert torch.equal(state, torch.random.get_rng_state())
    assert groups == policy.sample(prompts, SAMPLING, seeds=[3, 4])
    assert_learners(policy, prompts, groups)
    for group in groups:
        assert len(group) == 3
        for sample in group:
            assert not set(sample.tokens) & set(policy.suppressed_tokens)
            assert (sample.finish == "stop") == (sample.tokens[-1] in policy.stop_tokens)


@yaml_cases
def test_what_a_checkpoint_says_of_generation_changes_nothing(
    policy: Policy, settings: dict[str, Any]
) -> None:
    """Its penalties, cuts and forced tokens would make another distribution than that which learns."""
    prompts = policy.encode(PROBLEMS)
    samplings = [SAMPLING.model_copy(update={"temperature": t}) for t in (0.0, 1.0)]
    [[greedy, *_], _] = policy.sample(prompts, samplings[0], seeds=[3, 4])
    own, theirs = policy.model.generation_config, GenerationConfig(**settings)
    # Without samples that end early, and with some, where a checkpoint may forbid that.
    for stop in ([policy.tokenizer.eos_token_id], [policy.tokenizer.eos_token_id, greedy.tokens[1]]):
        own.eos_token_id = theirs.eos_token_id = stop
        policy.model.generation_config = own
        expected = [policy.sample(prompts, sampling, seeds=[3, 4]) for sampling in samplings]
        policy.model.generation_config = theirs
        assert [policy.sample(prompts, sampling, seeds=[3, 4]) for sampling in samplings] == expected
        assert policy.model.generation_config is theirs


def test_an_environment_that_speaks_first(policy: Policy) -> None:
    """Its words stand behind the prompt; other groups draw what they draw without it."""
    asked = [*PROBLEMS, *(replace(problem, environment_begins=True) for problem in PROBLEMS)]
    prompts, writer = policy.encode(asked), ReplyEncoder(policy.encoder)
    threads = policy.threads(prompts, SAMPLING, seeds=[1, 2, 3, 4])
    assert isinstance(threads, RecomputingSession)
    opened = [(b, g) for b in (2, 3) for g in range(3)]
    pieces = {(b, g): writer.opening(asked[b], Observation(f"Screen {g}.") if g else None) for b, g in opened}
    threads.append(pieces)
    said = threads.generate(dict.fromkeys([*((b, g) for b in (0, 1) for g in range(3)), *opened], 0))
    alone = policy.sample(prompts[:2], SAMPLING, seeds=[1, 2])
    assert [[said[b, g] for g in range(3)] for b in (0, 1)] == alone
    for (b, g), piece in pieces.items():
        [[row]] = policy.logprobs([prompts[b]], [[[*piece.tokens, *said[b, g].tokens]]])
        assert_close(said[b, g].logprobs, row[len(piece.tokens) :])


@pytest.mark.parametrize("words", ["Say <|im_end|>.", "What is <image>?", "<|im_start|>user"])
def test_special_tokens_in_words_are_refused(policy: Policy, words: str) -> None:
    """The model's own processor tokenises a text as a whole."""
    with pytest.raises(DataError, match=r"problem p: .*(special|image) token"):
        policy.encode([Problem("p", user_turn(words, images=0))])


def test_sizes_are_not_for_a_whole_processor(folder: Path) -> None:
    for name in ("min_pixels", "max_pixels"):
        with pytest.raises(ConfigError, match=rf"policy\.{name}: LlavaProcessor .*processor_config\.json"):
            Policy.load(str(folder), device="cpu", **{name: 100})


# --- Llama 3.2 Vision, whose images are no tokens: read in prompts only -------------------------------------


@pytest.fixture(scope="module")
def mllama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three layers, of which the second looks at images; the image token lies outside what is written."""
    folder = tmp_path_factory.mktemp("mllama")
    tokenizer = tiny_tokenizer()
    # The last token, as in the released models: behind the last one that the head knows.
    words = -(-len(tokenizer) // 8) * 8
    named_special(tokenizer, *(f"<|free_{n}|>" for n in range(words - len(tokenizer))), "<|image|>")
    begin = tokenizer.convert_ids_to_tokens(words - 1)
    tokenizer.bos_token = begin
    tokenizer.chat_template = begin + tokenizer.chat_template.replace(SLOT, "<|image|>")
    text = {
        "vocab_size": words, "bos_token_id": words - 1, "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip
    config = MllamaConfig(
        **parts("mllama", text), image_token_index=tokenizer.convert_tokens_to_ids("<|image|>"),
    )  # fmt: skip
    torch.manual_seed(0)
    model = MllamaForConditionalGeneration(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "gate" in name:
                # A fresh model does not look: its gates are shut.
                parameter.fill_(1.0)
    write_checkpoint(folder, model, tokenizer)
    images = MllamaImageProcessorPil(size={"height": 16, "width": 16}, max_image_tiles=4)
    MllamaProcessor(images, tokenizer, chat_template=tokenizer.chat_template).save_pretrained(folder)
    return folder


def mllama_logits(folder: Path, problem: Problem, continuation: list[int]) -> torch.Tensor:
    """As a user of transformers gets them; text behind the prompt sees what the prompt's last token sees."""
    model = MllamaForConditionalGeneration.from_pretrained(folder, attn_implementation="eager")
    made = processed(folder, problem)
    prompt = made["input_ids"][0].tolist()
    ids = [*prompt, *continuation]
    made |= {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids))}
    if problem.images:
        tiles = [int(mask.sum()) for mask in made["aspect_ratio_mask"][0]]
        seen = get_cross_attention_token_mask(ids, model.config.image_token_index)
        dense = convert_sparse_cross_attention_mask_to_dense([seen], [tiles], 4, len(ids))
        made["cross_attention_mask"] = torch.from_numpy(dense)
    return model(**made).logits[0, len(prompt) - 1 : -1]


def test_samples_of_mllama(mllama: Path) -> None:
    """They depend on the images."""
    policy = Policy.load(str(mllama), device="cpu")
    groups = own_samples(policy, lambda problem, tokens: mllama_logits(mllama, problem, tokens))
    prompts = policy.encode([TWO, replace(TWO, images=TWO.images[::-1])])
    found, swapped = policy.logprobs(prompts, [[groups[0][0].tokens]] * 2)
    assert (found - swapped).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["folder", "mllama"])
def test_second_turns(request: pytest.FixtureRequest, kind: str) -> None:
    """What is heard and said later sees the prompt's images, in sampling as in learning."""
    policy = Policy.load(str(request.getfixturevalue(kind)), device="cpu")
    prompts, writer = policy.encode(PROBLEMS), ReplyEncoder(policy.encoder)
    threads = policy.threads(prompts, SAMPLING, seeds=[1, 2])
    places = [(0, 1), (1, 0), (1, 2)]
    first = threads.generate(dict.fromkeys(places, 0))
    replies = {(b, g): writer.encode(PROBLEMS[b], Observation("Sure?"), 1) for b, g in places}
    asked = {place: without_written_end(first[place].tokens, reply) for place, reply in replies.items()}
    heard = threads.append(asked, score=True)
    second = threads.generate(dict.fromkeys(places, 1))
    for (b, g), piece in asked.items():
        said, tokens = first[b, g].tokens, second[b, g].tokens
        [[row]] = policy.logprobs([prompts[b]], [[[*said, *piece.tokens, *tokens]]])
        assert_close(heard[b, g], row[len(said) : -len(tokens)])
        assert_close(second[b, g].logprobs, row[-len(tokens) :])


def test_an_image_in_a_conversation_of_mllama_is_refused(mllama: Path) -> None:
    """It would be left out, or take the place of another one."""
    policy = Policy.load(str(mllama), device="cpu")
    reply = Observation([{"type": "text", "text": "Look:"}, {"type": "image"}], [noise_image(3)])
    with pytest.raises(ConfigError, match=r"problem two, turn 1.*'mllama'.*in the middle"):
        ReplyEncoder(policy.encoder).encode(TWO, reply, 1)


# --- PaliGemma, whose prompt is read in both directions and whose answer is not -----------------------------


@pytest.fixture(scope="module")
def paligemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paligemma")
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = tokenizer.chat_template.replace(SLOT, "<image>")
    tokenizer.bos_token = "<|video_pad|>"
    images = SiglipImageProcessorPil(size={"height": 32, "width": 32})
    images.image_seq_length = 16
    processor = PaliGemmaProcessor(images, tokenizer, chat_template=tokenizer.chat_template)
    text = {"vocab_size": -(-len(tokenizer) // 16) * 16, "eos_token_id": tokenizer.eos_token_id}
    config = PaliGemmaConfig(
        **parts("paligemma", text), projection_dim=32, image_token_id=processor.image_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    model = PaliGemmaForConditionalGeneration(config)
    write_checkpoint(folder, model, tokenizer)
    processor.save_pretrained(folder)
    return folder


ONE = Problem("one", user_turn("Which digits are shown here?"), [noise_image(1, 48, 40)])


def paligemma_scores(folder: Path, tokens: Sequence[int]) -> torch.Tensor:
    """``[R, V]`` the log-probs from which transformers' `generate` draws, made to write ``tokens``."""
    model = PaliGemmaForConditionalGeneration.from_pretrained(folder, attn_implementation="eager").eval()
    made = processed(folder, ONE)
    start = made["input_ids"].shape[1]
    out = model.generate(
        **made, do_sample=False, max_new_tokens=len(tokens), output_logits=True, return_dict_in_generate=True,
        prefix_allowed_tokens_fn=lambda _, ids: [tokens[len(ids) - start]],
    )  # fmt: skip
    return torch.stack([step[0] for step in out.logits]).float().log_softmax(-1)


def test_what_follows_a_token_does_not_change_its_logprob(paligemma: Path) -> None:
    """Alone, with others behind it, behind a longer prompt, and as `generate` gives it: equal numbers."""
    policy, tokens = Policy.load(str(paligemma), device="cpu"), [70, 71, 72, 73]
    expected = paligemma_scores(paligemma, tokens).gather(-1, torch.tensor(tokens)[:, None])[:, 0]
    prompts = policy.encode([ONE])
    whole = policy.logprobs(prompts, [[tokens]])[0, 0]
    torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-4)
    alone = policy.logprobs(prompts, [[tokens[:1]]])[0, 0, 0]
    assert float(alone.detach()) == pytest.approx(float(expected[0]), abs=1e-4)
    longer = policy.encoder.extended(prompts[0], Continuation(tokens[:2]))
    rest = policy.logprobs([longer], [[tokens[2:]]])[0, 0]
    torch.testing.assert_close(rest, expected[2:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("first", ["sample", "logprobs"])
def test_a_model_that_sees_what_follows_is_refused(
    paligemma: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """As where transformers takes what was generated for a part of the prompt."""
    generic = GenerationMixin._update_model_kwargs_for_generation
    monkeypatch.setattr(PaliGemmaForConditionalGeneration, "_update_model_kwargs_for_generation", generic)
    policy = Policy.load(str(paligemma), device="cpu")
    prompts = policy.encode([ONE])
    uses: dict[str, Callable[[], object]] = {
        "sample": lambda: policy.sample(prompts, SAMPLING, seeds=[3]),
        "logprobs": lambda: policy.logprobs(prompts, [[[70, 71, 72]]]),
    }
    with pytest.raises(ConfigError, match=r"policy\.path=.*'paligemma'.*docs/models\.md"):
        uses[first]()
