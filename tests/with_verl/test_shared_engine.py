"""The engine that forwards a prompt once for its group, against verl's own on the same batch."""

from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from tensordict import NonTensorData, NonTensorStack
from transformers import AutoModelForImageTextToText, AutoProcessor
from verl.utils import tensordict_utils
from verl.workers.utils.padding import no_padding_2_padding
from workers import batch, image_positions, llama_folder, nested, stand_alone, worker

from selfverify.core.errors import ConfigError
from selfverify.integrations.verl import shared_engine
from selfverify.integrations.verl.launch import VENDOR
from selfverify.policy.loading import resolve


def loss_of(config, model_output, data, dp_group=None):
    """A weighted sum of log-probs: every response token has a weight of its own."""
    logprobs = no_padding_2_padding(model_output["log_probs"], data)
    weights = no_padding_2_padding(data["weights"], data)
    return -(logprobs * weights).sum(), {}


@pytest.fixture(scope="module")
def text_folder(tmp_path_factory):
    """A fresh Llama of two layers with fewer key heads than query heads."""
    torch.manual_seed(0)
    return llama_folder(tmp_path_factory.mktemp("llama"), 97, 32, 48, 2, 4)


@pytest.fixture(autouse=True)
def own_environment(monkeypatch):
    stand_alone(monkeypatch)


def made_worker(path, shares, lora=0, **engine):
    model = {"lora_rank": lora, "lora_alpha": 8, "target_modules": "all-linear"}
    return worker(path, VENDOR if shares else "none", loss_of, model, **engine)


def asked(prompts, responses, positions=None, images=None, temperature=1.0):
    """Rows with weights for `loss_of`, whose entropies are wanted, too."""
    generator = torch.Generator().manual_seed(1)
    data = batch(prompts, responses, positions)
    data["weights"] = nested(
        [torch.randn(len(row), generator=generator) for row in data["input_ids"].unbind()]
    )
    if images is not None:
        data["multi_modal_inputs"] = NonTensorStack(*map(NonTensorData, images))
    tensordict_utils.assign_non_tensor(data, temperature=temperature, calculate_entropy=True)
    return data


def text_rows():
    """Three prompts, 13, 5 and 13 tokens; groups of 4, 1 and 3, out of order; a response of one token."""
    generator = torch.Generator().manual_seed(0)

    def drawn(count):
        return torch.randint(2, 97, (count,), generator=generator)

    one, two, three = drawn(13), drawn(5), drawn(13)
    prompts = [one, three, one, two, one, three, three, one]
    responses = [drawn(count) for count in (7, 1, 9, 4, 2, 6, 9, 3)]
    return prompts, responses


def figures(made, data):
    tensordict_utils.assign_non_tensor(data, compute_loss=False)
    out = made.infer_batch(data.clone())
    return {name: no_padding_2_padding(out[name], data) for name in ("log_probs", "entropy")}


@pytest.mark.parametrize(("dynamic", "lora"), [(False, 0), (True, 0), (False, 4)])
def test_values_gradients_and_weights_are_verls(text_folder, dynamic, lora):
    size = {"use_dynamic_bsz": True, "max_token_len_per_gpu": 60, "infer_max_token_len_per_gpu": 60}
    if not dynamic:
        size = {"micro_batch_size_per_gpu": 4, "infer_micro_batch_size_per_gpu": 8}
    forwarded = {}
    made = {}
    for shares in (False, True):
        torch.manual_seed(0)  # adapters begin at random
        made[shares] = made_worker(text_folder, shares, lora, **size)
    for shares, each in made.items():
        counts = forwarded.setdefault(shares, [])
        each.engine.module.get_input_embeddings().register_forward_pre_hook(
            lambda module, args, counts=counts: counts.append(args[0].numel())
        )
    for temperature in (1.0, 0.7):
        data = asked(*text_rows(), temperature=temperature)
        mine, theirs = figures(made[True], data), figures(made[False], data)
        for name in mine:
            torch.testing.assert_close(mine[name], theirs[name], atol=2e-5, rtol=1e-4)
        steps = [
            tensordict_utils.get(each.train_batch(asked(*text_rows(), temperature=temperature)), "metrics")
            for each in (made[True], made[False])
        ]
        assert steps[0]["grad_norm"] == pytest.approx(steps[1]["grad_norm"], rel=1e-4)
    for own, other in zip(*(each.engine.module.parameters() for each in made.values()), strict=True):
        torch.testing.assert_close(own.full_tensor(), other.full_tensor(), atol=1e-4, rtol=0)
    assert sum(forwarded[True]) < sum(forwarded[False])


def image_rows():
    """Two pictures under one text: prompts with equal tokens and different images are not the same."""
    path = resolve("builtin:digits")
    processor = AutoProcessor.from_pretrained(path)
    model = AutoModelForImageTextToText.from_pretrained(path)
    noise = torch.Generator().manual_seed(2)
    pictures = [Image.fromarray((torch.rand(56, 84, 3, generator=noise) * 255).byte().numpy()) for _ in "ab"]
    made = [processor.image_processor(images=[picture], return_tensors="pt") for picture in pictures]
    count = int(made[0]["image_grid_thw"].prod()) // processor.image_processor.merge_size**2
    words = torch.randint(100, 300, (6,), generator=noise)
    prompt = torch.cat([words[:3], torch.full((count,), model.config.image_token_id), words[3:]])
    responses = [torch.randint(100, 300, (length,), generator=noise) for length in (6, 3, 5, 6, 2, 4)]
    shown = [0, 1, 0, 0, 1, 1]
    grids = [made[which]["image_grid_thw"] for which in shown]
    images = [
        {"pixel_values": made[which]["pixel_values"], "image_grid_thw": grid,
         "images_seqlens": grid[:, 1] * grid[:, 2]}
        for which, grid in zip(shown, grids, strict=True)
    ]  # fmt: skip
    positions = image_positions(model, [torch.cat([prompt, row]) for row in responses], grids)
    return [prompt] * len(shown), responses, positions, images


def test_images_of_a_prompt_are_seen_once():
    path = resolve("builtin:digits")
    size = {"micro_batch_size_per_gpu": 6, "infer_micro_batch_size_per_gpu": 6}
    made = [made_worker(path, shares, **size) for shares in (True, False)]
    patches = []
    made[0].engine.module.model.visual.register_forward_pre_hook(
        lambda module, args: patches.append(len(args[0]))
    )
    prompts, responses, positions, images = image_rows()
    data = asked(prompts, responses, positions, images)
    mine, theirs = (figures(each, data) for each in made)
    for name in mine:
        torch.testing.assert_close(mine[name], theirs[name], atol=5e-5, rtol=1e-4)
    assert patches[0] == 2 * len(images[0]["pixel_values"])
    for _ in range(2):
        steps = [
            tensordict_utils.get(each.train_batch(asked(*image_rows())), "metrics")["grad_norm"]
            for each in made
        ]
        assert steps[0] == pytest.approx(steps[1], rel=1e-3)


@pytest.mark.parametrize("given", [{"use_remove_padding": True}, {"use_fused_kernels": True}])
def test_what_has_an_attention_of_its_own_is_refused(text_folder, given):
    model = SimpleNamespace(**{"use_remove_padding": False, "use_fused_kernels": False} | given)
    engine = SimpleNamespace(ulysses_sequence_parallel_size=1)
    with pytest.raises(ConfigError, match=next(iter(given))):
        shared_engine.SharedPrefixEngine(model, engine, None, None)


def test_rows_that_cannot_share_are_forwarded_as_verl_does(text_folder, caplog):
    size = {"micro_batch_size_per_gpu": 8, "infer_micro_batch_size_per_gpu": 8}
    made = [made_worker(text_folder, shares, **size) for shares in (True, False)]
    data = asked(*text_rows())
    for each in made:
        each.engine.module.config.image_token_id = int(data["responses"].values()[0])
    mine, theirs = (figures(each, data) for each in made)
    torch.testing.assert_close(mine["log_probs"], theirs["log_probs"], atol=2e-5, rtol=1e-4)
    assert "images behind a prompt" in caplog.text


@pytest.mark.parametrize(("names", "most", "size"), [
    ("aaaabbbb", 40, 4), ("aaaabbbb", 39, 2), ("aaaabb", 40, 2), ("aaab", 40, 1), ("aaaabbbb", 5, 1),
])  # fmt: skip
def test_groups_share_a_micro_batch_where_they_fit(names, most, size):
    prompts = [torch.tensor([ord(name)]) for name in names]
    assert shared_engine.run_length(prompts, [10] * len(names), most) == size
