"""How much more likely a verifier finds a trajectory than its base does (VTS-V §3.3, Lemma 3.1)."""

from __future__ import annotations

from torch import Tensor


def step_log_ratios(logprobs_t: Tensor, base_logprobs_t: Tensor, step_t: Tensor, steps: int) -> Tensor:
    """log V_φ/V_φ0 of each step, in float64: Δr of Lemma 3.1, or the answer's share of r(τ).

    The sum over the tokens of a step, plan t_h and action a_h, each token conditioned on everything before it
    (the paper writes V(a_h | t_h)). η is left out, as in Lemma 3.1, and Q(s_1), which is the same for all
    trajectories of a question. Δr of step h is the difference r(s_{h+1}) - r(s_h): observations have no part
    in it, nor has t_{H+1}.

    Args:
        logprobs_t: ``[T]`` log-probabilities of V_φ, nats.
        base_logprobs_t: ``[T]`` those of V_φ0.
        step_t: ``[T]`` the number of each token's step, from 0; negative for tokens that count nowhere, such
            as observations.
        steps: The number of steps.

    Returns:
        ``[steps]`` sums, nats; 0 for a step without tokens.

    Raises:
        ValueError: The shapes differ, or a step is not below ``steps``.
    """
    if not logprobs_t.shape == base_logprobs_t.shape == step_t.shape or logprobs_t.dim() != 1:
        shapes = [tuple(x.shape) for x in (logprobs_t, base_logprobs_t, step_t)]
        raise ValueError(f"log-probabilities, those of the base and steps have shapes {shapes}: need one [T]")
    if step_t.numel() and int(step_t.max()) >= steps:
        raise ValueError(f"a token is of step {int(step_t.max())}, and there are {steps}, from 0")
    counts = step_t >= 0
    ratio_t = logprobs_t.double() - base_logprobs_t.double()
    return ratio_t.new_zeros(steps).index_add(0, step_t[counts].long(), ratio_t[counts])
