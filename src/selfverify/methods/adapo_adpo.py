"""AdaPO and ADPO together: a second turn re-examines the first answer and says how sure it is of its own.

Neither paper has this method. A trajectory has four segments: `turn_1`, `observation`, `turn_2` and `score`.
The tokens of the two turns learn as in AdaPO; those of the score learn ADPO's verification reward of the
second answers. So there are three credits on disjoint tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field, model_validator
from torch import Tensor

from selfverify.core.trajectory import SCORE, Credit, Group
from selfverify.methods.adapo import AdaPO, AdaPOConfig
from selfverify.methods.adpo import ADPO, ADPOConfig
from selfverify.methods.two_turn_method import TwoTurnMethod


class AdaPOADPOConfig(AdaPOConfig, ADPOConfig):
    """AdaPO's options, and those of ADPO's score channel. `kl` is AdaPO's; `score_kl` is `kl` by default."""

    format_weight: float = Field(
        0.1, ge=0, description="What a malformed score loses, unless `score_format_weight` says."
    )

    @property
    def needs_reference(self) -> bool:
        """Whether any channel can have a KL term."""
        return super().needs_reference or (self.score_kl or 0) > 0

    @model_validator(mode="after")
    def _check_channels(self) -> AdaPOADPOConfig:
        if self.credit == "entangled":
            raise ValueError("credit: entangled has one advantage for all channels, and this method three")
        return self


class AdaPOADPO(TwoTurnMethod):
    """See the module's docstring."""

    name = "adapo-adpo"
    summary = "AdaPO whose second turn also writes a score, which learns as in ADPO"
    config_class = AdaPOADPOConfig
    teaches_scores = True
    split_score = True
    config: AdaPOADPOConfig

    def __init__(self, config: AdaPOADPOConfig | None = None) -> None:
        super().__init__(config)
        self.turns, self.scores = AdaPO(self.config), ADPO(self.config)

    def credit(self, group: Group, valid: Tensor) -> list[Credit]:
        """Return AdaPO's two credits, and ADPO's for the score, over the same valid trajectories."""
        turns = self.turns.credit(group, valid)
        kept = valid if turns[0].valid is None else turns[0].valid
        return [*turns, *(credit for credit in self.scores.credit(group, kept) if credit.channel == SCORE)]

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """Return AdaPO's figures, which hold those of scores where there are any."""
        return self.turns.metrics(groups)
