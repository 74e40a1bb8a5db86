"""Our environments in TRL: what `trl.GRPOTrainer` takes as ``environment_factory``.

TRL keeps one object per rollout. It resets all of them, lets the model call their public methods as tools,
one object after another, and asks each for its reward (TRL 1.16, ``GRPOTrainer``; experimental there). Every
such object is here a lease of a pool, from its reset to its reward. Screens are blocks with images, for which
TRL wants a model that sees and a chat template that it knows.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

from selfverify.connectors.pool import EnvironmentPool, Lease, PoolConfig, Source
from selfverify.core import event_loop
from selfverify.core.episode import Call, EnvironmentLost, StepResult
from selfverify.core.errors import ConfigError, DataError

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

    A row's column ``task`` is the task, an object or its JSON; ``seed``, if there is one, is the seed. A
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
            None leaves it unscored. By default it is the sum of the environment's rewards, where there are
            any.
        task: Reads task and seed from a row's columns.
        seed: The seed of rows without one.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        settings: PoolConfig | None = None,
        score: Score | None = None,
        task: Callable[[Mapping[str, Any]], tuple[Mapping[str, Any], int]] | None = None,
        seed: int = 0,
    ) -> None:
        self.pool = EnvironmentPool(sources, settings)
        self.score, self.seed = score, seed
        self.task = task or self._of_columns
        self.leases = 0
        """Sessions that are lent now."""
        self._kind: type[TrlEnvironment] | None = None

    def __enter__(self) -> Self:
        event_loop.start(self.pool.__aenter__()).result()
        return self

    def __exit__(self, *_: object) -> None:
        event_loop.start(self.pool.close()).result()

    def __call__(self) -> TrlEnvironment:
        """Return an environment as TRL wants it; the first call asks a session for its tools.

        Raises:
            ConfigError: A tool has a name that TRL uses itself.
            EnvironmentLost: No session could be had.
        """
        if self._kind is None:
            self._kind = _with_tools(event_loop.start(self._tools()).result())
        return self._kind(self)

    async def _tools(self) -> Sequence[dict[str, Any]]:
        async with self.pool.lease() as lease:
            return list(lease.tools)

    def _of_columns(self, row: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
        task = row.get("task", {})
        try:
            task = json.loads(task) if isinstance(task, str) else task
        except ValueError as error:
            raise DataError(f"the column 'task' is no JSON: {error}: {task[:80]!r}") from None
        if not isinstance(task, Mapping):
            raise DataError(f"the column 'task' is no object: {str(task)[:80]}")
        seed = row.get("seed")
        return task, self.seed if seed is None else int(seed)


class TrlEnvironment:
    """One rollout's environment; a class derived from it has the tools as methods. TRL makes no other use of
    it.

    `observations` and `lost` are for reward functions of one's own, which TRL gives ``environments``.
    """

    def __init__(self, owner: TrlEnvironments) -> None:
        self._owner = owner
        self._lease: Lease | None = None
        self._stack: Any = None
        self._over = False
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
        self.observations, self.lost, self._over = [], "", False
        task, seed = owner.task(row)
        if owner.leases >= owner.pool.sessions:
            raise ConfigError(
                f"TRL holds more than {owner.pool.sessions} environments at once, and there are no more: "
                "give the sources more, or the trainer fewer rollouts at once"
            )
        try:
            self._stack = owner.pool.lease()
            self._lease = event_loop.start(self._stack.__aenter__()).result()
            owner.leases += 1
            return self._seen(event_loop.start(self._lease.reset(task, seed)).result(), "\n\n")
        except EnvironmentLost as error:
            self.lost = str(error)
            return None
        except BaseException:
            self._give_back()
            raise

    def get_reward(self) -> float | None:
        """Return what the episode was worth, and give the session back; None where nothing is known."""
        owner, reward = self._owner, None
        try:
            if not self.lost and self._lease is not None:
                if owner.score is not None:
                    state = event_loop.start(self._lease.state()).result()
                    reward = owner.score(self.observations, state)
                else:
                    given = [seen.reward for seen in self.observations if seen.reward is not None]
                    reward = sum(given) if given else None
        except EnvironmentLost as error:
            self.lost = str(error)
        finally:
            self._give_back()
        return reward

    def _call(self, name: str, arguments: dict[str, Any]) -> str | Blocks:
        """Carry out a call. Nothing is raised: TRL would show the model our own errors."""
        if self.lost or self._lease is None:
            return "Error: the environment is lost."
        if self._over:
            return "Error: the task is over."
        try:
            shown = event_loop.start(self._lease.step(Call(name, arguments))).result()
        except EnvironmentLost as error:
            self.lost = str(error)
            return "Error: the environment is lost."
        except DataError as error:
            return f"Error: {error}"
        return self._seen(shown, "") or "Done."

    def _seen(self, shown: StepResult, before: str) -> str | Blocks | None:
        """Keep an observation and return it as TRL shows it: a text, or blocks where there are images."""
        self.observations.append(shown)
        self._over = shown.done or shown.truncated
        text = "\n".join(
            part for part in (f"Error: {shown.error}" if shown.error else "", shown.text) if part
        )
        if not shown.images:
            return before + text if text else None
        blocks: Blocks = [{"type": "text", "text": before + text}] if text else []
        return blocks + [{"type": "image", "image": image} for image in shown.images]

    def _give_back(self) -> None:
        if self._lease is not None:
            self._owner.leases -= 1
            self._lease = None
            event_loop.start(self._stack.__aexit__(None, None, None)).result()


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
