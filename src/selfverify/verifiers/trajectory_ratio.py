"""A verifier of whole trajectories: how much likelier they are than before its training (VTS-V §3.3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from selfverify.core.errors import ConfigError
from selfverify.core.trajectory import Finish, Group, Trajectory
from selfverify.objectives.advantage import step_log_ratios
from selfverify.policy.policy import Policy
from selfverify.rollouts.score_reading import with_images
from selfverify.verifiers.base import Scores, no_scores
from selfverify.visual.stopping import LOG_RATIO


class TrajectoryRatio:
    """r(τ) = Σ log V_φ/V_φ0 over all that the policy wrote, the answer t_{H+1} among it; nats, any sign.

    η and Q(s_1) of the paper are left out: they are the same for all trajectories of a problem. Longer
    trajectories have more terms, and r(τ) is not divided by their number, as in the paper.

    What was measured while a trajectory was made (`looking.step_verifier.StepVerifier`) is taken as it is.
    Else the whole is read anew, for which the tokens have to be the verifier's. Trajectories that were lost
    have no score.

    Args:
        policy: V_φ; None takes what was measured, and gives others no score.
        base: V_φ0; None is V_φ without its adapter.

    Raises:
        ConfigError: V_φ has neither base nor adapter.
    """

    def __init__(self, policy: Policy | None, base: Policy | None = None, name: str = "ratio") -> None:
        if policy is None and base is not None:
            raise ConfigError("a base without a verifier measures nothing")
        self.policy = policy
        self.base = policy.without_adapter() if policy is not None and base is None else base
        self._name = name

    @property
    def name(self) -> str:
        """See `Verifier`."""
        return self._name

    def score(self, groups: Sequence[Group]) -> Scores:
        """See `Verifier.score`.

        Raises:
            DataError: A problem or an image cannot be encoded.
        """
        found = no_scores(groups)
        for b, group in enumerate(groups):
            for g, trajectory in enumerate(group.trajectories):
                if trajectory.finish != Finish.ERROR:
                    found[b][g] = trajectory.scores.get(LOG_RATIO)
            if self.policy is None or self.base is None:
                continue
            anew = [
                g
                for g, trajectory in enumerate(group.trajectories)
                if found[b][g] is None and trajectory.finish != Finish.ERROR and trajectory.written
            ]
            read = [group.trajectories[g] for g in anew]
            for g, value in zip(anew, self._read(self.policy, self.base, group, read), strict=True):
                found[b][g] = value
        return found

    @torch.no_grad()
    def _read(
        self, policy: Policy, base: Policy, group: Group, trajectories: Sequence[Trajectory]
    ) -> list[float]:
        """r of some trajectories of a problem, each read by both models in one pass."""
        values = []
        for trajectory in trajectories:
            written = torch.tensor([s.author == "policy" for s in trajectory.segments for _ in s.tokens])
            rows = []
            for model in (policy, base):
                piece = with_images(model, group.problem.id, trajectory, trajectory.tokens)
                needed = written[None, None]
                rows.append(
                    model.logprobs(model.encode([group.problem]), [[piece]], needed=needed)[0, 0].cpu()
                )
            values.append(step_log_ratios(rows[0], rows[1], written.long() - 1, 1).item())
        return values
