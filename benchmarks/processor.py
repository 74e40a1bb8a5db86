"""The processor that transformers' and TRL's side of a comparison uses."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any

from families import NOT_FOR_MODELS, make_writer, preprocess
from transformers import BatchFeature, ProcessorMixin

from selfverify.core.problem import Problem
from selfverify.policy.policy import Policy


class ImageTextProcessor(ProcessorMixin):
    """A processor without the video part, which cannot be built without torchvision.

    ``writer`` (see `families.make_writer`) preprocesses images and says what stands for them in the text.
    """

    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: Any = None,
        chat_template: Any = None,
        writer: Any = None,
    ) -> None:
        super().__init__(image_processor, tokenizer, chat_template=chat_template)
        self.writer = writer
        self.image_token = writer.image_token
        # Of the placeholder, which in Gemma 3 is not what the template writes.
        self.image_token_id = tokenizer.convert_tokens_to_ids(writer.placeholder)

    def __call__(self, images: Any = None, text: Any = None, **kwargs: Any) -> BatchFeature:
        """Preprocess images, expand placeholders, tokenise."""
        kwargs = {**kwargs.pop("text_kwargs", {}), **kwargs}
        kinds = kwargs.pop("return_mm_token_type_ids", True)
        wanted = kwargs.pop("return_tensors", None)
        texts = [text] if isinstance(text, str) else list(text)
        made: dict[str, Any] = {}
        if images is not None:
            rows = images if isinstance(images[0], list | tuple) else [images]
            made = preprocess(self.writer, rows)
            places = itertools.count()
            for n, words in enumerate(texts):
                first, *rest = words.split(self.image_token)
                texts[n] = first + "".join(
                    self.writer.replace_image_token(made, image_idx=next(places)) + part for part in rest
                )
            made = {k: v for k, v in made.items() if k not in NOT_FOR_MODELS}
        allowed = {k: v for k, v in kwargs.items() if k in ("padding", "padding_side", "add_special_tokens")}
        encoded = dict(self.tokenizer(texts, **allowed))
        encoded.pop("token_type_ids", None)
        if kinds and self.writer.kinds_name:
            encoded[self.writer.kinds_name] = [
                [int(token == self.image_token_id) for token in row] for row in encoded["input_ids"]
            ]
        return BatchFeature({**encoded, **made}, tensor_type=wanted)


def replicated(policy: Policy, problems: Sequence[Problem], copies: int) -> dict[str, Any]:
    """Left-padded inputs with every problem so many times, as a trainer gives them to generate()."""
    tokenizer, rows = policy.tokenizer, [p for p in problems for _ in range(copies)]
    texts = [
        tokenizer.apply_chat_template(p.messages, tokenize=False, add_generation_prompt=True) for p in rows
    ]
    images = [p.images for p in rows]
    return dict(
        make_processor(tokenizer)(images, texts, padding=True, padding_side="left", return_tensors="pt")
    )


def make_processor(tokenizer: Any, kind: str = "qwen2_5_vl", config: Any = None) -> ImageTextProcessor:
    """The processor that transformers' and TRL's side of a comparison uses."""
    tokenizer = copy.deepcopy(tokenizer)
    # TRL loads processors this way; handed one that pads on the right, it misplaces token types silently.
    tokenizer.padding_side = "left"
    writer = make_writer("qwen2_vl" if kind == "qwen2_5_vl" else kind, config, tokenizer)
    return ImageTextProcessor(writer.image_processor, tokenizer, tokenizer.chat_template, writer)
