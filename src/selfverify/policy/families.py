"""Model families, a class each: their placeholders, positions, image features and masks.

`Family` has the questions that a model family answers, with the answers that most families share. `FAMILIES`
has the families by ``model_type``, and `family_of` finds that of a model. `segmented_attention` computes in
the vision towers of some of them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.vision_utils import get_vision_cu_seqlens, get_vision_window_index

from selfverify.core.errors import ConfigError


@dataclass(slots=True)
class ImageInput:
    """One preprocessed image.

    Args:
        key: Digest of its content.
        tensors: The image processor's output, as a batch of one image.
        text: Its place in a prompt's text: placeholders, and marks around them.
        placeholders: How many of the text's tokens are placeholders, one per image feature.
    """

    key: str
    tensors: dict[str, Tensor]
    text: str
    placeholders: int


@dataclass(slots=True)
class Embedded:
    """Embeddings, the places where image features stand in them, and further arguments of the decoder."""

    values_blh: Tensor
    places_bl: Tensor
    more: dict[str, Any] = field(default_factory=dict)


def last_hidden(decoder: Any, mask: Tensor, /, **given: Any) -> Tensor:
    """Return the hidden states of a model without its head, which keeps what it reads only where asked to."""
    cached = "past_key_values" in given
    hidden: Tensor = decoder(attention_mask=mask, use_cache=cached, **given).last_hidden_state
    return hidden


class Family:
    """A model family. The defaults fit text-only causal language models.

    The rest of `policy` asks these methods. A family overrides those whose answers differ.
    """

    position_axes = 1
    """The rows of the position ids: 3 for multimodal rotary embeddings, 1 for plain ones."""
    shares_prompts = True
    """Whether a prompt can be forwarded once for all its continuations."""
    bidirectional_images = False
    """Whether the tokens of one image attend to each other in both directions."""
    splits_single_images = False
    """Whether an image is split into tiles only where it is its prompt's only one."""
    processing: Mapping[str, Any] = {}
    """More arguments of the image processor's call."""

    def backbone(self, model: Any) -> Any:
        """The decoder that maps embeddings to hidden states.

        Raises:
            ConfigError: The model does not say which of its parts that is.
        """
        # A few models name their head, or themselves, as their decoder.
        inner = (part for name, part in model.named_children() if name == "model")
        for found in (model.get_decoder(), model.base_model, *inner):
            if isinstance(found, PreTrainedModel) and found is not model:
                return found
        raise ConfigError(
            f"models of type {model.config.model_type!r} name no decoder, so they cannot be used here; take "
            "another type of model, and please report this one"
        )

    def placeholder(self, model: Any) -> int | None:
        """Return the token id that stands for one image feature; None for text-only models."""
        return None

    def slot(self, model: Any, tokenizer: Any) -> str:
        """Return the text that the chat template writes for an image. `ImageInput.text` takes its place."""
        token: str = tokenizer.convert_ids_to_tokens(self.placeholder(model))
        return token

    def marks(self, model: Any, tokenizer: Any) -> list[str]:
        """Return the tokens that only prompts may contain: placeholders, and the marks around images."""
        token = self.placeholder(model)
        return [] if token is None else [tokenizer.convert_ids_to_tokens(token)]

    def preprocess(self, processor: Any, image: Image, several: bool) -> dict[str, Tensor]:
        """Make tensors of one image. ``several`` says that its prompt has others (`splits_single_images`)."""
        return dict(processor(images=[image], return_tensors="pt", **self.processing))

    def text(self, model: Any, tokenizer: Any, processor: Any, tensors: dict[str, Tensor]) -> str:
        """Return the text that stands for an image in a prompt: placeholders, and marks around them."""
        raise TypeError("a text-only model has no images")

    def coordinate_space(self, model: Any, processor: Any, size: tuple[int, int]) -> tuple[int, int]:
        """Return the width and height of the space in which the model writes places in an image.

        By default 1000 x 1000 for images of all sizes.

        Args:
            model: The model.
            processor: Its image processor.
            size: Width and height of the image in pixels.

        Raises:
            ValueError: The processor refuses images of this size.
        """
        return 1000, 1000

    def positions(self, model: Any, ids: Tensor, images: Sequence[ImageInput]) -> Tensor:
        """Return position ids ``[axes, L]`` of one sequence ``ids`` [L] that contains ``images``."""
        return torch.arange(len(ids), device=ids.device)[None]

    def prepare_tower(self, model: Any) -> None:
        """Set up how the vision tower of a model that was just loaded computes."""

    def image_features(self, model: Any, images: Sequence[ImageInput]) -> list[Tensor]:
        """Return features ``[placeholders, F]`` of each image.

        The first H columns replace the placeholders' embeddings. Others, if any, are for `decoder_inputs`.
        """
        raise TypeError("a text-only model has no image features")

    def decoder_inputs(self, model: Any, places: Tensor, features: Tensor) -> dict[str, Any]:
        """Make further arguments of the decoder, from ``features`` [places, F] at ``places`` [B, L]."""
        return {}

    def run_decoder(
        self, model: Any, embeddings: Tensor, positions: Tensor, mask: Tensor, **more: Any
    ) -> Tensor:
        """Return hidden states ``[B, L, H]`` of the decoder alone.

        ``positions`` are ``[axes, B, L]``, and ``mask`` is of any kind that the decoder takes. Keys and
        values are kept in ``past_key_values`` where ``more`` has them.
        """
        places = positions if self.position_axes > 1 else positions[0]
        return last_hidden(self.backbone(model), mask, inputs_embeds=embeddings, position_ids=places, **more)

    def plain_forward(
        self, model: Any, embedded: Embedded, positions: Tensor, mask: Tensor, **kept: Any
    ) -> Tensor:
        """Return hidden states ``[B, L, H]`` of padded rows, by transformers' own masks.

        Args:
            embedded: Of the rows' tokens ``[B, L]``.
            positions: ``[axes, B, L]``.
            mask: ``[B, L]`` 1 at tokens.
            kept: ``past_key_values`` as in `run_decoder`.
        """
        return self.run_decoder(model, embedded.values_blh, positions, mask, **embedded.more, **kept)

    def whole_forward(
        self, model: Any, ids: Tensor, mask: Tensor, prompt: int, images: Sequence[ImageInput]
    ) -> Tensor:
        """Return hidden states of one prompt's rows by the whole model. Only `Unknown` can."""
        raise TypeError("prompts of this family can be shared; use plain_forward")

    def vision_parameters(self, model: Any) -> list[nn.Parameter]:
        """Return the parameters of the vision tower, which are frozen unless ``train_vision`` is set."""
        return []


class VisionFamily(Family):
    """Vision-language models of transformers, whose ``model.model`` holds a vision tower and a decoder."""

    tower: tuple[str, ...] = ("vision_tower", "multi_modal_projector")
    """The modules of ``model.model`` that make image features."""

    def placeholder(self, model: Any) -> int | None:
        return int(model.config.image_token_id)

    def image_features(self, model: Any, images: Sequence[ImageInput]) -> list[Tensor]:
        return [self.features_of(model, image) for image in images]

    def features_of(self, model: Any, image: ImageInput) -> Tensor:
        """Return the features of one image, where images differ in their number of tiles."""
        raise NotImplementedError

    def vision_parameters(self, model: Any) -> list[nn.Parameter]:
        return [p for name in self.tower for p in getattr(model.model, name).parameters()]


def stacked(images: Sequence[ImageInput], name: str, model: Any) -> Tensor:
    """Join the images' tensors of one name, on the model's device."""
    return torch.cat([image.tensors[name] for image in images]).to(model.device)


SEGMENTED = "selfverify_segmented"


class Segments:
    """Which patches of a row of S attend to each other; worked out once for all layers.

    A patch attends to its own image only, or to a window of it.

    Args:
        boundaries: ``[segments + 1]`` on the CPU, from 0 to S: where each segment begins and the last ends.
        device: Where the tower is.
        together: Whether one call computes all segments, with short ones padded, as suits windows. Else there
            is a call for each length: images may be of very different sizes.
    """

    def __init__(self, boundaries: Tensor, device: torch.device, together: bool = False) -> None:
        self.row = boundaries[[0, -1]]
        """``[2]`` on the CPU: the boundaries of the row as a whole."""
        segments = sorted((torch.arange(*ends) for ends in pairwise(boundaries.tolist())), key=len)
        self._groups: list[tuple[int, Tensor | None, Tensor | None]] = []
        kinds = [segments] if together else [[*alike] for _, alike in groupby(segments, len)]
        padded = [pad_sequence(kind, batch_first=True, padding_value=-1) for kind in kinds]
        order = torch.cat([places.flatten() for places in padded])
        as_it_is = len(padded) == 1 and bool((order.diff() == 1).all())
        for places in padded:
            real, index = places >= 0, None if as_it_is else places.clamp(min=0).flatten().to(device)
            seen = None if bool(real.all()) else real[:, None, None].to(device)
            self._groups.append((places.shape[1], index, seen))
        self._back = None if as_it_is else order.argsort()[int((order < 0).sum()) :].to(device)

    def attend(self, module: nn.Module, row: tuple[Tensor, Tensor, Tensor], **options: Any) -> Tensor:
        """Attention ``[1, S, heads, D]`` within each segment.

        Args:
            module: The attention of a layer.
            row: Queries, keys and values, each ``[1, heads, S, D]``, positions applied.
            options: Passed on to transformers' own attention.
        """
        parts = []
        for length, places, seen in self._groups:
            patches = (_at(x[0].transpose(0, 1), places) for x in row)
            batch = [x.unflatten(0, (-1, length)).transpose(1, 2) for x in patches]
            parts.append(sdpa_attention_forward(module, *batch, seen, **options)[0].flatten(0, 1))
        return _at(torch.cat(parts), self._back)[None]


def _at(patches: Tensor, places: Tensor | None) -> Tensor:
    return patches if places is None else patches.index_select(0, places)


def segmented_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    segments: Mapping[int, Segments] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls in every layer of a tower.

    A tower gets the patches of all images in one row. transformers computes one segment (window or image)
    after another: 1,796 calls for one image of 1,024 tokens in Qwen2.5-VL. Segments are as independent as the
    rows of a batch, so here a layer makes one call for all windows (32 calls for the same image), and one for
    all images of one size.

    The function is registered with transformers as `SEGMENTED`. A tower that computes with it is given, by
    the name ``segments``, the `Segments` of each of its attention modules, and ``cu_seqlens`` that make the
    row one segment, so that the modules pass it on as a whole.

    Args:
        module: The layer's attention.
        query: ``[1, heads, S, D]``, like ``key`` and ``value``; positions are applied.
        key: See ``query``.
        value: See ``query``.
        attention_mask: For calls without segments.
        segments: By the `id` of attention modules; None computes what transformers would.
        kwargs: Passed on to transformers' own attention.

    Returns:
        ``[1, S, heads, D]`` and None (attention weights are not kept).
    """
    if segments is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    return segments[id(module)].attend(module, (query, key, value), **kwargs), None


ALL_ATTENTION_FUNCTIONS.register(SEGMENTED, segmented_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(SEGMENTED, sdpa_mask)


class QwenVL(VisionFamily):
    """Qwen2-VL, and what its successors Qwen2.5-VL and Qwen3-VL have in common with it.

    There is one placeholder per merged patch, and rotary positions have three axes.
    """

    position_axes = 3
    tower = ("visual",)

    def marks(self, model: Any, tokenizer: Any) -> list[str]:
        c = model.config
        names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
        ids = (getattr(c, name, None) for name in names)
        return [tokenizer.convert_ids_to_tokens(i) for i in ids if i is not None and i < len(tokenizer)]

    def text(self, model: Any, tokenizer: Any, processor: Any, tensors: dict[str, Tensor]) -> str:
        merged = int(tensors["image_grid_thw"].prod()) // processor.merge_size**2
        return self.slot(model, tokenizer) * merged

    def positions(self, model: Any, ids: Tensor, images: Sequence[ImageInput]) -> Tensor:
        kinds = (ids == model.config.image_token_id).int()
        grids = torch.cat([image.tensors["image_grid_thw"] for image in images]) if images else None
        places, _ = model.model.get_rope_index(ids[None], kinds[None], image_grid_thw=grids)
        result: Tensor = places[:, 0]
        return result

    def image_features(self, model: Any, images: Sequence[ImageInput]) -> list[Tensor]:
        return list(self._run_tower(model, images).pooler_output)

    def prepare_tower(self, model: Any) -> None:
        """Let windows of one size, and images, go through attention together."""
        model.model.visual.config._attn_implementation = SEGMENTED

    def _run_tower(self, model: Any, images: Sequence[ImageInput]) -> Any:
        pixels, grids = stacked(images, "pixel_values", model), stacked(images, "image_grid_thw", model)
        on_cpu = torch.cat([image.tensors["image_grid_thw"] for image in images])
        split = self._split(model.model.visual, on_cpu, model.device)
        return model.model.get_image_features(pixels, grids, return_dict=True, **split)

    def _split(self, tower: Any, grids: Tensor, device: torch.device) -> dict[str, Any]:
        """Arguments of the tower that say which patches attend to each other: those of one image.

        Args:
            tower: The tower.
            grids: ``[images, 3]`` frames, rows and columns of patches, on the CPU.
            device: Where the tower is.
        """
        images = Segments(get_vision_cu_seqlens(grids), device)
        return {"cu_seqlens": images.row, "segments": {id(block.attn): images for block in tower.blocks}}


class Qwen25VL(QwenVL):
    """Qwen2.5-VL, which writes places in pixels of the image as it was resized for it."""

    def coordinate_space(self, model: Any, processor: Any, size: tuple[int, int]) -> tuple[int, int]:
        limits = processor.size
        height, width = smart_resize(
            size[1],
            size[0],
            factor=processor.patch_size * processor.merge_size,
            min_pixels=limits["shortest_edge"],
            max_pixels=limits["longest_edge"],
        )
        return width, height

    def _split(self, tower: Any, grids: Tensor, device: torch.device) -> dict[str, Any]:
        """Let patches of one window see each other, and in some layers those of the whole image."""
        split = super()._split(tower, grids, device)
        order, boundaries = get_vision_window_index(
            grids, tower.spatial_merge_size, tower.window_size, tower.patch_size
        )
        windows = Segments(boundaries, device, together=True)
        split["segments"] |= {
            id(block.attn): windows
            for number, block in enumerate(tower.blocks)
            if number not in tower.fullatt_block_indexes
        }
        return split | {"window_index": order.to(device), "cu_window_seqlens": windows.row}


class Qwen3VL(QwenVL):
    """Qwen3-VL: features of several tower layers are added behind the first decoder layers ("deep stack")."""

    def image_features(self, model: Any, images: Sequence[ImageInput]) -> list[Tensor]:
        """Return the ordinary features with the deep ones behind them, layer by layer."""
        made = self._run_tower(model, images)
        return [
            torch.cat(layers, dim=-1)
            for layers in zip(made.pooler_output, *made.deepstack_features, strict=True)
        ]

    def decoder_inputs(self, model: Any, places: Tensor, features: Tensor) -> dict[str, Any]:
        width = model.get_input_embeddings().embedding_dim
        deep = list(features[:, width:].split(width, dim=-1))
        return {"visual_pos_masks": places, "deepstack_visual_embeds": deep}


class LlavaOnevision(VisionFamily):
    """LLaVA-OneVision in transformers' format.

    An image is the whole image, then its tiles without their padding and with a mark per line.
    """

    splits_single_images = True

    def preprocess(self, processor: Any, image: Image, several: bool) -> dict[str, Any]:
        made = processor(images=[[image] * (1 + several)], return_tensors="pt")
        return {
            "pixel_values": made["pixel_values"][:1],
            "image_sizes": made["image_sizes"][:1],
            "batch_num_images": torch.tensor([1 + several]),
        }

    def text(self, model: Any, tokenizer: Any, processor: Any, tensors: dict[str, Tensor]) -> str:
        """Return the placeholders, counted by letting the model pack features of width 1."""
        vision = model.config.vision_config
        tile = (vision.image_size // vision.patch_size) ** 2
        tiles = torch.zeros(tensors["pixel_values"].shape[1], tile, 1)
        packed, _ = model.model.pack_image_features(
            [tiles], tensors["image_sizes"], torch.zeros(1), model.config.vision_aspect_ratio
        )
        return self.slot(model, tokenizer) * len(packed[0])

    def features_of(self, model: Any, image: ImageInput) -> Tensor:
        made = model.model.get_image_features(
            image.tensors["pixel_values"].to(model.device),
            image.tensors["image_sizes"].to(model.device),
            batch_num_images=image.tensors["batch_num_images"],  # one image, but did it stand alone?
            return_dict=True,
        )
        features: Tensor = made.pooler_output[0]
        return features

    def vision_parameters(self, model: Any) -> list[nn.Parameter]:
        return [*super().vision_parameters(model), model.model.image_newline]


AROUND, GLOBAL = "<fake_token_around_image>", "<global-img>"


class Idefics3(VisionFamily):
    """Idefics3 and SmolVLM: an image is split into tiles, each with marks around its placeholders.

    Both share their classes' structure; SmolVLM only has smaller tiles.
    """

    tower = ("vision_model", "connector")
    processing = {"return_row_col_info": True}

    def marks(self, model: Any, tokenizer: Any) -> list[str]:
        return [*super().marks(model, tokenizer), AROUND, GLOBAL]

    def text(self, model: Any, tokenizer: Any, processor: Any, tensors: dict[str, Any]) -> str:
        """Return the tiles' placeholders row by row, then those of the whole image."""
        vision = model.config.vision_config
        tile = self.slot(model, tokenizer) * (
            (vision.image_size // vision.patch_size) ** 2 // model.config.scale_factor**2
        )
        rows, columns = int(tensors["rows"][0][0]), int(tensors["cols"][0][0])
        lines = [
            "".join(f"{AROUND}<row_{r + 1}_col_{c + 1}>{tile}" for c in range(columns)) + "\n"
            for r in range(rows)
        ]
        return "".join(lines) + ("\n" if lines else "") + f"{AROUND}{GLOBAL}{tile}{AROUND}"

    def features_of(self, model: Any, image: ImageInput) -> Tensor:
        pixels = image.tensors["pixel_values"].to(model.device)
        mask = image.tensors["pixel_attention_mask"].to(model.device)
        made = model.model.get_image_features(pixels, mask, return_dict=True)
        return torch.cat([tile.reshape(-1, tile.shape[-1]) for tile in made.pooler_output])


class Gemma3(VisionFamily):
    """Gemma 3 with its vision tower; its text-only models are a plain `Family`.

    Image tokens see each other in both directions; most layers have a sliding window.
    """

    bidirectional_images = True
    processing = {"do_pan_and_scan": False}
    """It would add crops, and is off by default."""

    def slot(self, model: Any, tokenizer: Any) -> str:
        token: str = tokenizer.boi_token
        return token

    def marks(self, model: Any, tokenizer: Any) -> list[str]:
        return [*super().marks(model, tokenizer), tokenizer.boi_token, tokenizer.eoi_token]

    def text(self, model: Any, tokenizer: Any, processor: Any, tensors: dict[str, Tensor]) -> str:
        inside = tokenizer.convert_ids_to_tokens(self.placeholder(model)) * model.config.mm_tokens_per_image
        return f"\n\n{tokenizer.boi_token}{inside}{tokenizer.eoi_token}\n\n"

    def image_features(self, model: Any, images: Sequence[ImageInput]) -> list[Tensor]:
        made = model.model.get_image_features(stacked(images, "pixel_values", model), return_dict=True)
        return list(made.pooler_output)

    def plain_forward(
        self, model: Any, embedded: Embedded, positions: Tensor, mask: Tensor, **kept: Any
    ) -> Tensor:
        """Run the model's own forward, which makes the masks from the kinds of tokens."""
        given = {"inputs_embeds": embedded.values_blh, "position_ids": positions[0]}
        return last_hidden(model.model, mask, **given, token_type_ids=embedded.places_bl.long(), **kept)


class InternVL(VisionFamily):
    """InternVL 2.5, 3 and 3.5 (the checkpoints in transformers' format).

    Tiles of equal size stand between a start and an end mark.
    """

    processing = {"crop_to_patches": True}
    """As the family's processor class asks for, not as the folder says."""

    def marks(self, model: Any, tokenizer: Any) -> list[str]:
        return [*super().marks(model, tokenizer), tokenizer.start_image_token, tokenizer.end_image_token]

    def text(self, model: Any, tokenizer: Any, processor: Any, tensors: dict[str, Tensor]) -> str:
        vision = model.config.vision_config
        height, width = (
            size // patch for size, patch in zip(vision.image_size, vision.patch_size, strict=True)
        )
        tile = int(height * width * model.config.downsample_ratio**2)
        inside = self.slot(model, tokenizer) * (tile * len(tensors["pixel_values"]))
        return f"{tokenizer.start_image_token}{inside}{tokenizer.end_image_token}"

    def image_features(self, model: Any, images: Sequence[ImageInput]) -> list[Tensor]:
        made = model.model.get_image_features(stacked(images, "pixel_values", model), return_dict=True)
        tiles = [len(image.tensors["pixel_values"]) for image in images]
        return [tile.flatten(0, 1) for tile in made.pooler_output.split(tiles)]


class Unknown(Family):
    """Vision-language families without a class of their own, several times slower.

    transformers' `AutoProcessor` and ``model.generate`` have to know them: the model's own forward runs on
    every sample by itself. Nothing is shared between a prompt's samples, no image feature is kept, and image
    tokens are suppressed only as far as the configuration names them. One `ImageInput` holds everything that
    the processor made of a prompt.
    """

    shares_prompts = False

    def backbone(self, model: Any) -> Any:
        """Return the model below its head, with its vision tower."""
        return model.base_model if model.base_model is not model else model.model

    def placeholder(self, model: Any) -> int | None:
        """Return the configuration's image token, if it names one."""
        names = ("image_token_id", "image_token_index")
        return next((i for name in names if (i := getattr(model.config, name, None)) is not None), None)

    def vision_parameters(self, model: Any) -> list[nn.Parameter]:
        """Return the parameters of everything that is not the decoder."""
        decoder = {id(p) for p in model.get_decoder().parameters()}
        head = {id(p) for p in model.get_output_embeddings().parameters()}
        return [p for p in model.parameters() if id(p) not in decoder | head]

    def whole_forward(
        self, model: Any, ids: Tensor, mask: Tensor, prompt: int, images: Sequence[ImageInput]
    ) -> Tensor:
        """Hidden states ``[G, L, H]`` of one prompt's G rows.

        Args:
            model: The model.
            ids: ``[G, L]`` prompt and continuation, padded on the right.
            mask: ``[G, L]`` 1 at tokens.
            prompt: The prompt's length.
            images: The processor's tensors of the prompt, or nothing.
        """
        rows, length = ids.shape
        tensors = {
            name: tensor.to(ids.device).repeat(rows, *[1] * (tensor.dim() - 1))
            for name, tensor in lengthened(model, images[0].tensors if images else {}, prompt, length).items()
        }
        return last_hidden(self.backbone(model), mask, input_ids=ids, **tensors)


class _NoOutputs(dict[str, Any]):
    """The outputs of a model that has computed nothing: every one of them is None."""

    def __getattr__(self, name: str) -> None:
        return None


def lengthened(model: Any, tensors: dict[str, Tensor], prompt: int, length: int) -> dict[str, Tensor]:
    """Return a processor's tensors of ``prompt`` tokens as they would be of ``length``, the others generated.

    Args:
        model: The model. For each generated token the values are appended that its `generate` appends.
        tensors: The processor's tensors.
        prompt: See above.
        length: See above.

    Raises:
        ConfigError: `generate` makes something else of a tensor.
    """
    if length == prompt:
        return tensors
    longer = model._update_model_kwargs_for_generation(_NoOutputs(), {**tensors, "use_cache": False}, False)
    made = {}
    for name, tensor in tensors.items():
        after = longer.get(name)
        # Of kinds of tokens to which `generate` appends nothing, it goes on with that of the last one.
        kinds = tensor.shape[:2] == (1, prompt) and not tensor.is_floating_point()
        last = tensor[:, -1:] if kinds else None
        axis = 1
        if isinstance(after, Tensor) and after.shape != tensor.shape:
            grown = [n for n, size in enumerate(tensor.shape) if after.shape[n : n + 1] == (size + 1,)]
            if after.dim() != tensor.dim() or len(grown) != 1:
                raise ConfigError(
                    f"models of type {model.config.model_type!r} turn {name} of shape {tuple(tensor.shape)} "
                    f"to {tuple(after.shape)} for a token that follows, which is not known here; take a "
                    "family of docs/models.md"
                )
            axis = grown[0]
            last = after.narrow(axis, tensor.shape[axis], 1)
        if last is not None:
            tensor = torch.cat([tensor, *[last] * (length - prompt)], axis)
        made[name] = tensor
    return made


log = logging.getLogger(__name__)

FAMILIES: dict[str, type[Family]] = {
    "gemma3": Gemma3,
    "idefics3": Idefics3,
    "internvl": InternVL,
    "llava_onevision": LlavaOnevision,
    "qwen2_5_vl": Qwen25VL,
    "qwen2_vl": QwenVL,
    "qwen3_vl": Qwen3VL,
    "smolvlm": Idefics3,
}
"""Vision-language families by transformers' ``model_type``."""


def family_of(model: Any) -> Family:
    """The family of a loaded model, by its ``model_type``; all text-only models share one family."""
    kind = model.config.model_type
    if kind in FAMILIES:
        return FAMILIES[kind]()
    if getattr(model.config, "vision_config", None) is not None:
        log.warning(
            "the vision-language family %r is not known here: every sample is forwarded by itself, several "
            "times slower. Known: %s, and all text-only causal language models.",
            kind,
            ", ".join(FAMILIES),
        )
        return Unknown()
    return Family()
