"""ADPO for users of TRL: `ADPOTrainer` takes the place of ``GRPOTrainer`` and learns to verify answers.

Reward functions stay as they are: they judge answers. The trainer reads the score at the end of each
completion, compares it with the other scores of its group, and gives the tokens of answer and score separate
advantages (ADPO Eq. 5, 7, 9).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from trl import GRPOTrainer

from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.core.tags import channel_lengths, parse_tagged, token_ends
from selfverify.core.trajectory import ANSWER, SCORE, Finish, Group, Segment, Trajectory
from selfverify.methods.adpo import ADPO, ADPOConfig
from selfverify.methods.metrics import group_metrics

_READ = ("score", "answer_format", "score_format", "score_opened", "length", "truncated")
"""The figures of a completion that each process tells the others."""


class ADPOTrainer(GRPOTrainer):
    """`trl.GRPOTrainer` with preference verification and decoupled advantages.

    Args:
        args: The arguments of `trl.GRPOTrainer`, as are all keywords that are not named here.
        adpo: Options of `ADPOConfig` (``gamma``, ``verification``, ``score_weight``, ...). The KL is TRL's,
            for all tokens (``GRPOConfig.beta``). ``verification_credit: expected`` works with this library's
            own learner only.
        tags: The tags of a completion, in order. The last one is the score's.
        judges: Names of the reward functions that say how good an answer is; None means all. These alone
            decide which scores contrast. A reward for markup among them would contrast two right answers.

    An answer's advantage comes from TRL's weighted sum of all reward functions. Two answers contrast when
    their rewards differ by more than ``gamma``. ``scale_rewards`` and ``multi_objective_aggregation`` have no
    effect.

    Raises:
        ConfigError: An option does not work in this trainer.
    """

    def __init__(
        self,
        *args: Any,
        adpo: dict[str, Any] | None = None,
        tags: Sequence[str] = ("think", "answer", "score"),
        judges: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        options = dict(adpo or {})
        for name in ("kl", "score_kl"):
            if name in options:
                raise ConfigError(f"adpo[{name!r}]: the KL is TRL's here; set beta in GRPOConfig")
        if options.get("verification_credit") == "expected":
            raise ConfigError(
                "adpo['verification_credit']='expected' needs this library's own learner (selfverify.learn); "
                "'normalised' and 'concordance' work here"
            )
        parse_tagged("", tags)
        if tags[-1] != "score":
            raise ConfigError(f"tags {tuple(tags)} must end with 'score'")
        super().__init__(*args, **kwargs)
        if self.tools:
            raise ConfigError("ADPOTrainer reads one answer and its score; tools are not supported")
        if self.args.importance_sampling_level != "token":
            raise ConfigError(
                "importance_sampling_level must be 'token': answer and score have advantages of their own"
            )
        self.adpo = ADPO(ADPOConfig(kl=self.beta, **options))
        self.tags = tuple(tags)
        unknown = set(judges or ()) - set(self.reward_func_names)
        if unknown:
            raise ConfigError(
                f"judges: no reward function is named {', '.join(sorted(unknown))}; there are: "
                f"{', '.join(self.reward_func_names)}"
            )
        self._judging = torch.tensor([judges is None or name in judges for name in self.reward_func_names])
        self._answer_rewards = torch.zeros(0, 2)

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return TRL's rewards ``[all completions, functions]``; keep them for the verification reward."""
        rewards: Tensor = super()._calculate_rewards(*args, **kwargs)
        weighted = rewards * self.reward_weights.to(rewards.device)
        both = torch.stack([weighted.nansum(1), weighted[:, self._judging.to(rewards.device)].nansum(1)], 1)
        self._answer_rewards = both.masked_fill(rewards.isnan().all(1, keepdim=True), float("nan"))
        return rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Return TRL's batch with ``advantages`` per token, ``[completions, tokens]``."""
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if "tool_mask" in output:
            raise ConfigError("ADPOTrainer reads one answer and its score; environment text is not supported")
        ids, mask = output["completion_ids"], output["completion_mask"].bool()
        read = torch.tensor([self._read(row[kept].tolist()) for row, kept in zip(ids, mask, strict=True)])
        answers = read[:, _READ.index("length")].to(ids.device)
        everyone = self.accelerator.gather(read.to(ids.device)).cpu()
        advantages = self._advantages(everyone)
        first = self.accelerator.process_index * len(ids)
        answer, score = advantages[first : first + len(ids)].to(ids.device).unbind(1)
        places = torch.arange(ids.shape[1], device=ids.device)
        output["advantages"] = torch.where(places < answers[:, None], answer[:, None], score[:, None]).float()
        return output

    def _read(self, tokens: list[int]) -> list[float]:
        """Return the figures of `_READ` of one completion."""
        text, ends = token_ends(self._tokenizer, tokens)
        stopped = bool(tokens) and tokens[-1] in self.eos_token_ids
        body = text[: ends[-2] if len(ends) > 1 else 0] if stopped else text
        tagged = parse_tagged(body, self.tags)
        score = float("nan") if tagged.score is None else tagged.score
        opened = tagged.score_start is not None
        length = channel_lengths(ends, tagged.score_start)
        return [score, tagged.answer_ok, tagged.score_ok, opened, length, not stopped]

    def _advantages(self, read: Tensor) -> Tensor:
        """Return the advantages of every completion's answer and score, ``[all, 2]``, times their weights."""
        training = self.model.training
        size = self.num_generations if training else self.num_generations_eval
        rewards = self._answer_rewards.cpu().double()
        groups, found = [], []
        for start in range(0, len(read), size):
            rows = range(start, start + size)
            total, judged = rewards[start : start + size].unbind(1)
            group = Group(
                Problem(str(start), []), [self._trajectory(read[i], judged[i - start]) for i in rows]
            )
            valid = ~total.isnan()
            extra = (total - judged).nan_to_num()
            credits = self.adpo.credit(group, valid, extra)
            by_channel = {credit.channel: credit.advantage * credit.weight for credit in credits}
            found.append(torch.stack([by_channel[ANSWER], by_channel[SCORE]], dim=1))
            groups.append(group)
        for name, value in group_metrics(groups).items():
            if name.startswith(("verification/", "reward/verification", "format/")):
                self._metrics["train" if training else "eval"][f"adpo/{name}"].append(value)
        return torch.cat(found)

    @staticmethod
    def _trajectory(read: Tensor, reward: Tensor) -> Trajectory:
        row = dict(zip(_READ, read.tolist(), strict=True))
        value = 0.0 if reward.isnan() else float(reward)
        finish = Finish.LENGTH if row["truncated"] else Finish.STOP
        return Trajectory(
            [Segment(ANSWER, [], finish=finish)],
            scores={} if row["score"] != row["score"] else {"sampled": row["score"]},
            rewards={
                "answer": value,
                "correct": float(value > 0.5),
                **{name: row[name] for name in ("answer_format", "score_format", "score_opened")},
            },
        )
