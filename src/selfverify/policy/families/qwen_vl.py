"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: one placeholder per merged patch, three-axis rotary positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.vision_utils import get_vision_cu_seqlens, get_vision_window_index

from selfverify.policy.families.base import ImageInput, VisionFamily, stacked
from selfverify.policy.families.segmented_attention import SEGMENTED, Segments


class QwenVL(VisionFamily):
    """Qwen2-VL, and what its successors have in common with it."""

    position_axes = 3
    tower = ("visual",)

    def marks(self, model: Any, tokenizer: Any) -> list[str]:
        """See `Family`."""
        c = model.config
        names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
        ids = (getattr(c, name, None) for name in names)
        return [tokenizer.convert_ids_to_tokens(i) for i in ids if i is not None and i < len(tokenizer)]

    def text(self, model: Any, tokenizer: Any, processor: Any, tensors: dict[str, Tensor]) -> str:
        """See `Family`."""
        merged = int(tensors["image_grid_thw"].prod()) // processor.merge_size**2
        return self.slot(model, tokenizer) * merged

    def positions(self, model: Any, ids: Tensor, images: Sequence[ImageInput]) -> Tensor:
        """See `Family`."""
        kinds = (ids == model.config.image_token_id).int()
        grids = torch.cat([image.tensors["image_grid_thw"] for image in images]) if images else None
        places, _ = model.model.get_rope_index(ids[None], kinds[None], image_grid_thw=grids)
        result: Tensor = places[:, 0]
        return result

    def image_features(self, model: Any, images: Sequence[ImageInput]) -> list[Tensor]:
        """See `Family`."""
        made = self._run_tower(model, images)
        return list(made.pooler_output)

    def prepare_tower(self, model: Any) -> None:
        """See `Family`: windows of one size, and images, go through attention together."""
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
        """See `Family`."""
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
        """See `QwenVL`: in most layers only those of one window."""
        split = super()._split(tower, grids, device)
        order, boundaries = get_vision_window_index(
            grids, tower.spatial_merge_size, tower.window_size, tower.patch_size
        )
        windows = Segments(boundaries, device)
        split["segments"] |= {
            id(block.attn): windows
            for number, block in enumerate(tower.blocks)
            if number not in tower.fullatt_block_indexes
        }
        return split | {"window_index": order.to(device), "cu_window_seqlens": windows.row}


class Qwen3VL(QwenVL):
    """Qwen3-VL: features of several tower layers are added behind the first decoder layers ("deep stack")."""

    def image_features(self, model: Any, images: Sequence[ImageInput]) -> list[Tensor]:
        """See `Family`: the deep features stand behind the ordinary ones, layer by layer."""
        made = self._run_tower(model, images)
        return [
            torch.cat(layers, dim=-1)
            for layers in zip(made.pooler_output, *made.deepstack_features, strict=True)
        ]

    def decoder_inputs(self, model: Any, places: Tensor, features: Tensor) -> dict[str, Any]:
        """See `Family`."""
        width = model.get_input_embeddings().embedding_dim
        deep = list(features[:, width:].split(width, dim=-1))
        return {"visual_pos_masks": places, "deepstack_visual_embeds": deep}
