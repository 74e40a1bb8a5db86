"""Captions: what an image shows, in words."""

from __future__ import annotations

from collections.abc import Callable

from PIL.Image import Image

from selfverify.core.config import SamplingConfig
from selfverify.core.problem import Problem
from selfverify.looking.tools.hub_models import loaded, place_of, processor_of
from selfverify.looking.tools.model_tool import ModelTool
from selfverify.looking.tools.pictures import Gallery
from selfverify.looking.tools.shared import shared
from selfverify.looking.tools.visual_tool import Found, OnImage
from selfverify.tasks.base import user_turn

REQUEST = "Describe this image in one or two sentences."
LONGEST = 96
"""Tokens of a caption."""


class ImageCaptioner(ModelTool[OnImage]):
    """Describes an image in words.

    Args:
        model: A folder or a hub id: a captioner (BLIP, GIT), or a model that chats about images, such as the
            one that looks.
        device: Where it runs.
    """

    name = "caption"
    also = ("caption_action", "ImageCaptioner")
    arguments = OnImage
    setting = "caption_model"

    def run(self, asked: OnImage, gallery: Gallery) -> Found:
        """See `VisualTool`."""
        full = gallery.picture(asked.image_index).full
        [text] = shared(("caption", self.model, self.device), self._load)([full])
        return Found(f"Image {asked.image_index} shows: {text}")

    def _load(self) -> Callable[[list[Image]], list[str]]:
        from transformers import AutoTokenizer

        chats = AutoTokenizer.from_pretrained(place_of(self.named)).chat_template is not None
        return self._chatting() if chats else self._captioning()

    def _captioning(self) -> Callable[[list[Image]], list[str]]:
        import torch
        from transformers import AutoModelForImageTextToText

        model = loaded(AutoModelForImageTextToText, self.named, self.device)
        processor = processor_of(self.named)

        @torch.inference_mode()
        def describe(images: list[Image]) -> list[str]:
            inputs = processor(images=images, return_tensors="pt").to(self.device)
            tokens = model.generate(**inputs, max_new_tokens=LONGEST, do_sample=False)
            return [text.strip() for text in processor.batch_decode(tokens, skip_special_tokens=True)]

        return describe

    def _chatting(self) -> Callable[[list[Image]], list[str]]:
        from selfverify.policy.policy import Policy
        from selfverify.rollouts.conversation import said_of

        policy = Policy.load(place_of(self.named), device=self.device)
        sampling = SamplingConfig(group_size=1, temperature=0.0, max_new_tokens=LONGEST)

        def describe(images: list[Image]) -> list[str]:
            problems = [
                Problem(f"caption/{i}", user_turn(REQUEST), [image]) for i, image in enumerate(images)
            ]
            groups = policy.sample(policy.encode(problems), sampling, seeds=[0] * len(problems))
            return [said_of(policy, sample).text.strip() for [sample] in groups]

        return describe
