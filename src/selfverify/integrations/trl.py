"""ADPO for users of TRL: `ADPOTrainer` takes the place of ``GRPOTrainer`` and learns to verify answers.

Reward functions stay as they are: they judge answers. The trainer reads the score at the end of each
completion, compares it with the other scores of its group, and gives the tokens of answer and score separate
advantages (ADPO Eq. 5, 7, 9).

`TrlEnvironments` makes our environments known to TRL, as what ``GRPOTrainer`` takes as
``environment_factory``. TRL keeps one object per rollout. It resets all of them, lets the model call their
public methods as tools, one object after another, and asks each for its reward (TRL 1.16; experimental
there). Every such object has here a session of a pool, from its reset to its reward. Screens are blocks with
images, for which TRL wants a model that sees and a chat template that it knows.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self, cast

import torch
from accelerate.utils import gather_object
from torch import Tensor
from torch.nn.functional import pad
from trl import GRPOTrainer

from selfverify.agents.session import EnvironmentSession, PooledEnvironment, SharedPool
from selfverify.connectors.pool import PoolConfig, Source
from selfverify.core import event_loop
from selfverify.core.episode import Call, EnvironmentLost, StepResult
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.problem import Problem
from selfverify.core.tags import channel_lengths, parse_tagged, token_ends
from selfverify.core.trajectory import ANSWER, SCORE, Finish, Group, Segment, Trajectory
from selfverify.methods.adpo import ADPO, ADPOConfig
from selfverify.methods.metrics import group_metrics
from selfverify.trainer.batch import make_streams


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
        own = [self._read(row[kept].tolist()) for row, kept in zip(ids, mask, strict=True)]
        first = self.accelerator.process_index * len(own)
        rows = self._advantages(gather_object(own))[first : first + len(own)]
        padded = [pad(row, (0, ids.shape[1] - len(row))) for row in rows]
        output["advantages"] = torch.stack(padded).to(ids.device)
        return output

    def _read(self, tokens: list[int]) -> Trajectory:
        """Return a completion as answer and score, without its reward."""
        text, ends = token_ends(self._tokenizer, tokens)
        stopped = bool(tokens) and tokens[-1] in self.eos_token_ids
        body = text[: ends[-2] if len(ends) > 1 else 0] if stopped else text
        tagged = parse_tagged(body, self.tags)
        length = channel_lengths(ends, tagged.score_start)
        finish = Finish.STOP if stopped else Finish.LENGTH
        formats = {
            "answer_format": float(tagged.answer_ok),
            "score_format": float(tagged.score_ok),
            "score_opened": float(tagged.score_start is not None),
        }
        return Trajectory(
            [Segment(ANSWER, tokens[:length]), Segment(SCORE, tokens[length:], finish=finish)],
            {} if tagged.score is None else {"sampled": tagged.score},
            formats,
        )

    def _advantages(self, completions: list[Trajectory]) -> list[Tensor]:
        """Return the advantages of every completion's tokens, times their weights."""
        training = self.model.training
        size = self.num_generations if training else self.num_generations_eval
        rewards = self._answer_rewards.cpu().double()
        groups, found = [], list[Tensor]()
        for start in range(0, len(completions), size):
            total, judged = rewards[start : start + size].unbind(1)
            group = Group(Problem(str(start), []), completions[start : start + size])
            for trajectory, value in zip(group.trajectories, judged.nan_to_num().tolist(), strict=True):
                trajectory.rewards |= {"answer": value, "correct": float(value > 0.5)}
            credits = self.adpo.credit(group, ~total.isnan(), (total - judged).nan_to_num())
            streams = make_streams(cast(Any, None), group, credits)  # TRL has the prompt
            found += (streams.advantage_gr * streams.weight_gr).unbind()
            groups.append(group)
        for name, value in group_metrics(groups).items():
            if name.startswith(("verification/", "reward/verification", "format/")):
                self._metrics["train" if training else "eval"][f"adpo/{name}"].append(value)
        return found


Blocks = list[dict[str, Any]]
Score = Callable[[list[StepResult], dict[str, Any] | None], float | None]

_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "object": dict,
    "null": type(None),
}
_RESERVED = ("reset", "get_reward")


class TrlEnvironments:
    """Makes environments for TRL. Use it as a context manager around the training.

    A row's column ``task`` is the task, an object or its JSON; ``seed`` is the seed, 0 without one. A
    rollout whose environment was lost has no reward: TRL then leaves it out of its group and gives it no
    advantage.

    Example:
        >>> with TrlEnvironments([ServerSource(RemoteConfig(url), sessions=16)]) as factory:  # doctest:
        +SKIP ...     trainer = GRPOTrainer(..., reward_funcs=[], environment_factory=factory)
        ...     trainer.train()

    Args:
        sources: Where sessions come from, at least as many as rollouts are made at once.
        settings: How patient the pool is.
        score: Says what an episode was worth, from what was seen and the ground truth (`Environment.state`);
            None leaves it unscored. By default it is the sum of the environment's rewards, where these
            environments have paid anything so far.
    """

    def __init__(
        self, sources: Sequence[Source], settings: PoolConfig | None = None, score: Score | None = None
    ) -> None:
        self.lender, self.score = SharedPool(lambda: sources, settings), score
        self.sessions = sum(source.sessions for source in sources)
        self.leases = 0
        """Sessions that are lent now."""
        self.pays = False
        """Whether an environment has ever given a reward."""
        self._kind: type[TrlEnvironment] | None = None

    def __enter__(self) -> Self:
        event_loop.start(self.lender.pool()).result()
        return self

    def __exit__(self, *_: object) -> None:
        self.lender.close()

    def __call__(self) -> TrlEnvironment:
        """Return an environment as TRL wants it; the first call asks a session for its tools.

        Raises:
            ConfigError: A tool has a name that TRL uses itself.
            EnvironmentLost: No session could be had.
        """
        if self._kind is None:
            self._kind = _with_tools(self.lender.ask_for_tools())
        return self._kind(self)

    @staticmethod
    def task(row: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
        """Return the task and the seed of a row."""
        task = row.get("task", {})
        try:
            task = json.loads(task) if isinstance(task, str) else task
        except ValueError as error:
            raise DataError(f"the column 'task' is no JSON: {error}: {task[:80]!r}") from None
        if not isinstance(task, Mapping):
            raise DataError(f"the column 'task' is no object: {str(task)[:80]}")
        seed = row.get("seed")
        return task, 0 if seed is None else int(seed)


class TrlEnvironment:
    """One rollout's environment; a class derived from it has the tools as methods. TRL makes no other use of
    it.

    `observations` and `lost` are for reward functions of one's own, which TRL gives ``environments``.
    """

    def __init__(self, owner: TrlEnvironments) -> None:
        self._owner = owner
        self._session: EnvironmentSession | None = None
        self.observations: list[StepResult] = []
        self.lost = ""
        """Why the environment was lost; empty where it was not."""

    def reset(self, **row: Any) -> str | Blocks | None:
        """Begin the task of a row; what is shown then goes to the end of the prompt.

        Raises:
            ConfigError: TRL holds more environments at once than there may be sessions.
            DataError: There is no such task.
        """
        owner = self._owner
        self._give_back()
        self.observations, self.lost = [], ""
        task, seed = owner.task(row)
        if owner.leases >= owner.sessions:
            raise ConfigError(
                f"TRL holds more than {owner.sessions} environments at once, and there are no more: "
                "give the sources more, or the trainer fewer rollouts at once"
            )
        owner.leases += 1
        self._session = EnvironmentSession(PooledEnvironment(owner.lender, ()))
        try:
            return self._seen(self._session.reset(task, seed), "\n\n")
        except EnvironmentLost as error:
            self.lost = str(error)
            return None
        except BaseException:
            self._give_back()
            raise

    def get_reward(self) -> float | None:
        """Return what the episode was worth, and give the session back; None where nothing is known.

        One in which nothing was paid is worth 0, where others were paid: TRL leaves those with None out, and
        then a policy that never comes to the end, where most environments pay, would lose nothing.
        """
        owner, reward = self._owner, None
        try:
            if not self.lost and self._session is not None:
                if owner.score is not None:
                    reward = owner.score(self.observations, self._session.state())
                else:
                    given = [seen.reward for seen in self.observations if seen.reward is not None]
                    reward = sum(given) if owner.pays else None
        except EnvironmentLost as error:
            self.lost = str(error)
        finally:
            self._give_back()
        return reward

    def _call(self, name: str, arguments: dict[str, Any]) -> str | Blocks:
        """Carry out a call. Nothing is raised: TRL would show the model our own errors."""
        if self.lost or self._session is None:
            return "Error: the environment is lost."
        if self._session.over:
            return "Error: the task is over."
        try:
            shown = self._session.act(Call(name, arguments))
        except EnvironmentLost as error:
            self.lost = str(error)
            return "Error: the environment is lost."
        except DataError as error:
            return f"Error: {error}"
        return self._seen(shown, "") or "Done."

    def _seen(self, shown: StepResult, before: str) -> str | Blocks | None:
        """Keep an observation and return it as TRL shows it: a text, or blocks where there are images."""
        self.observations.append(shown)
        self._owner.pays |= shown.reward is not None
        text = "\n".join(
            part for part in (f"Error: {shown.error}" if shown.error else "", shown.text) if part
        )
        if not shown.images:
            return before + text if text else None
        blocks: Blocks = [{"type": "text", "text": before + text}] if text else []
        return blocks + [{"type": "image", "image": image} for image in shown.images]

    def _give_back(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._owner.leases -= 1
            session.close()


def _with_tools(tools: Sequence[Mapping[str, Any]]) -> type[TrlEnvironment]:
    """A class with a method for each tool, whose signature and docstring give the tool's schema back."""
    methods = {}
    for tool in tools:
        method = _method(tool["function"])
        name = method.__name__
        if name in _RESERVED or name.startswith("_") or not name.isidentifier():
            raise ConfigError(f"TRL cannot take a tool called {name!r}")
        methods[name] = method
    return type("Environment", (TrlEnvironment,), methods)


def _method(function: Mapping[str, Any]) -> Callable[..., Any]:
    schema = function.get("parameters") or {}
    properties: dict[str, Any] = schema.get("properties") or {}
    required = schema.get("required") or ()
    name = str(function["name"])

    def method(self: TrlEnvironment, **arguments: Any) -> Any:
        return self._call(name, arguments)

    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for key, inner in properties.items():
        default = inspect.Parameter.empty if key in required else inner.get("default")
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(key, kind, default=default, annotation=_type(inner)))
    method.__name__, method.__qualname__ = name, f"Environment.{name}"
    method.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    method.__annotations__ = {p.name: p.annotation for p in parameters[1:]}
    told = _line(function.get("description"), name)
    lines = [f"    {key}: {_line(inner.get('description'), key)}" for key, inner in properties.items()]
    method.__doc__ = "\n".join([told, "", "Args:", *lines] if lines else [told])
    return method


def _type(schema: Mapping[str, Any]) -> Any:
    """The type hint of a parameter; transformers makes a schema of it again."""
    match schema:
        case {"enum": [*values]} if values and all(isinstance(v, str | int | bool) for v in values):
            return Literal[tuple(values)]
        case {"type": "array", "items": {"type": str()} as items}:
            return list[_type(items)]  # type: ignore[misc]
        case {"type": "array"}:
            return list
        case {"type": str(kind)}:
            return _TYPES.get(kind, Any)
    return Any


def _line(text: Any, otherwise: str) -> str:
    """A description as one line without what docstrings are read by."""
    said = " ".join(str(text or otherwise).split())
    for mark in ("Args:", "Returns:", "Raises:"):
        said = said.replace(mark, mark[:-1])
    return said.replace("(choices:", "(one of")
