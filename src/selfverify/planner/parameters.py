"""Counts of a model's parameters, and the bytes of them that sharding moves."""

from __future__ import annotations

from dataclasses import dataclass

from selfverify.policy.policy import Policy


@dataclass(slots=True)
class Parameters:
    """Counts of parameters, and bytes of what sharding moves.

    Args:
        total: The number of all parameters, those of an adapter included.
        trainable: The number of parameters that learn.
        weight_bytes: The bytes of all parameters.
        trainable_bytes: The bytes of the parameters that learn.
        block_bytes: The bytes of the largest decoder layer.
        root_bytes: The bytes of the parameters outside the decoder's layers.
    """

    total: int
    trainable: int
    weight_bytes: int
    trainable_bytes: int
    block_bytes: int
    root_bytes: int


def parameters_of(policy: Policy) -> Parameters:
    """Return counts and bytes of a policy's parameters."""
    model, decoder = policy.model, policy.loaded.family.backbone(policy.model)
    every = list(model.parameters())
    trainable = [p for p in every if p.requires_grad]
    layers = [sum(p.nbytes for p in layer.parameters()) for layer in getattr(decoder, "layers", [])]
    size = {id(p): p.nbytes for p in every}
    weights = sum(size.values())
    return Parameters(
        total=sum(p.numel() for p in every),
        trainable=sum(p.numel() for p in trainable),
        weight_bytes=weights,
        trainable_bytes=sum(size[id(p)] for p in trainable),
        block_bytes=max(layers, default=0),
        root_bytes=weights - sum(layers),
    )
