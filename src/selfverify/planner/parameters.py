"""Counts of a model's parameters, and the bytes of them that sharding and decoding move."""

from __future__ import annotations

from dataclasses import dataclass

from selfverify.policy.policy import Policy


@dataclass(slots=True)
class Parameters:
    """Counts of parameters, and bytes of what sharding and decoding move.

    Args:
        total: The number of all parameters, those of an adapter included.
        trainable: The number of parameters that learn.
        weight_bytes: The bytes of all parameters.
        trainable_bytes: The bytes of the parameters that learn.
        read_bytes: The bytes that one decoding step reads: the decoder and the head.
        block_bytes: The bytes of the largest decoder layer.
        root_bytes: The bytes of the parameters outside the decoder's layers.
        dtype_bytes: The bytes of one weight.
    """

    total: int
    trainable: int
    weight_bytes: int
    trainable_bytes: int
    read_bytes: int
    block_bytes: int
    root_bytes: int
    dtype_bytes: int


def parameters_of(policy: Policy) -> Parameters:
    """Return counts and bytes of a policy's parameters."""
    model, decoder = policy.model, policy.loaded.family.backbone(policy.model)
    every = list(model.parameters())
    size = {id(p): p.nbytes for p in every}
    trainable = [p for p in every if p.requires_grad]
    head = model.get_output_embeddings().weight
    embeddings = model.get_input_embeddings().weight
    # Decoding reads a few rows of the embeddings, and all of them only where they are the head as well.
    read = {id(p) for p in decoder.parameters()} - {id(embeddings)} | {id(head)}
    layers = [sum(p.nbytes for p in layer.parameters()) for layer in getattr(decoder, "layers", [])]
    weights = sum(size.values())
    return Parameters(
        total=sum(p.numel() for p in every),
        trainable=sum(p.numel() for p in trainable),
        weight_bytes=weights,
        trainable_bytes=sum(size[id(p)] for p in trainable),
        read_bytes=sum(size[i] for i in read),
        block_bytes=max(layers, default=0),
        root_bytes=weights - sum(layers),
        dtype_bytes=model.dtype.itemsize,
    )
