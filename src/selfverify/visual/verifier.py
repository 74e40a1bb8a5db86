"""The verifier that hears each step of a reasoner: Δr of VTS-V's Lemma 3.1, here or behind servers.

`StepVerifier` measures it on kept keys, `ServedVerifier` from the log-probabilities of prompts.
`StoppingVerifier` makes from settings what ends looking: a rule, and the verifier that it asks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import torch
from torch import Tensor

from selfverify.core.config import SamplingConfig
from selfverify.core.episode import Observation, PolicyTurn, RolloutHook
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.events import note
from selfverify.core.policy_config import is_served
from selfverify.core.problem import Problem
from selfverify.core.tags import channel_lengths, token_ends
from selfverify.core.trajectory import Finish, SampleIndex
from selfverify.objectives.advantage import step_log_ratios
from selfverify.policy.encoding import longest_row
from selfverify.policy.kv_sessions import KVSession
from selfverify.policy.observation_encoding import ReplyEncoder, without_written_end
from selfverify.policy.packing import Continuation
from selfverify.policy.policy import Policy
from selfverify.visual.calls import read_look_call
from selfverify.visual.config import VisualConfig
from selfverify.visual.stopping import (
    LOG_RATIO,
    LOG_RATIO_PLAN,
    STOPPING_FILE,
    StopCalibration,
    StopRule,
    Verified,
    make_stop_rule,
)

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Heard:
    """A conversation as the verifier has heard it.

    Args:
        problem: Its problem.
        used: Its tokens, the prompt's among them.
        last: The tokens that the reasoner has said last.
        turns: How often it has spoken.
        end: The token that ends a message of the reasoner in the verifier's template, if one does.
        deaf: Whether something could not be heard, so that nothing more is measured.
        back: Brings it back to where it stood before the reasoner was shown something last.
    """

    problem: Problem
    used: int
    last: list[int] = field(default_factory=list)
    turns: int = 0
    end: list[int] = field(default_factory=list)
    deaf: bool = False
    back: Callable[[], None] = lambda: None


class StepVerifier(RolloutHook):
    """Scores each turn of a reasoner by log V_φ/V_φ0 over its tokens, as soon as it has been said.

    The reasoner R, the verifier V_φ and the base V_φ0 are three roles. R may be anything that says text and
    sees images, also a model behind a server. V_φ and V_φ0 read the conversation in their own template: the
    problem, R's words, what tools have shown. Both keep the keys of what they have read, so that a turn costs
    its own tokens only. Where R's tokenizer is the verifier's the tokens are those that R has sampled; else
    its text is tokenised anew, without special tokens, with the end of a message behind it.

    Several rollouts may be heard by the same models at the same time, each by a `StepVerifier` of its own.
    These take turns with single passes (``lock``), since a model computes with one adapter at a time and a
    tokenizer has one set of switches.

    A turn's sum over plan and action, in nats, is put into `PolicyTurn.values` as ``log_ratio``, with the
    plan's part as ``log_ratio_plan``. A turn that is longer than the verifier's context, or holds something
    that it cannot read, is noted, and nothing is measured in that conversation from then on.

    Args:
        policy: V_φ.
        base: V_φ0; None is V_φ without its adapter, which shares its weights.
        reasoner: R, where it is a policy.
        lock: Held while a model or its tokenizer works, and by all who use the same models; None: no one else
            does.

    Raises:
        ConfigError: There is no base and no adapter, or V_φ and V_φ0 have different tokens.
    """

    def __init__(
        self,
        policy: Policy,
        base: Policy | None = None,
        reasoner: Policy | None = None,
        lock: Lock | None = None,
    ) -> None:
        self._working = lock or Lock()
        base = policy.without_adapter() if base is None else base
        self.policies = (policy, base)
        vocabulary = policy.tokenizer.get_vocab()
        if base.tokenizer is not policy.tokenizer and base.tokenizer.get_vocab() != vocabulary:
            raise ConfigError(
                f"the verifier {policy.config.path} and its base {base.config.path} have different tokens; "
                "the base is the model that the verifier was trained from"
            )
        self.reads_tokens = reasoner is not None and reasoner.tokenizer.get_vocab() == vocabulary
        """Whether it takes R's tokens as they were sampled."""
        self._writers = [ReplyEncoder(model.encoder) for model in self.policies]
        self._threads: list[KVSession] = []
        """For each of both models the keys of all that it has read."""
        self._rows: dict[SampleIndex, SampleIndex] = {}
        """Where models keep a conversation: its problem's number among the different ones, and its own."""
        self._heard: dict[SampleIndex, _Heard] = {}
        self._starts: dict[SampleIndex, Callable[[], None]] = {}

    def begin(self, problems: Mapping[SampleIndex, Problem]) -> None:
        """Read the prompts of conversations that begin, each problem's once.

        Raises:
            ConfigError: In a problem the environment speaks first.
            DataError: The verifier cannot read a problem.
        """
        if begins := [problem.id for problem in problems.values() if problem.environment_begins]:
            raise ConfigError(f"problem {begins[0]}: its environment speaks first, which no verifier follows")
        alike: dict[int, list[SampleIndex]] = {}
        for place in sorted(problems):
            alike.setdefault(id(problems[place]), []).append(place)
        self._rows = {p: (b, g) for b, places in enumerate(alike.values()) for g, p in enumerate(places)}
        group = SamplingConfig(group_size=max(map(len, alike.values()), default=1), temperature=1.0)
        self._threads = []
        for policy in self.policies:
            with self._working:
                prompts = policy.encode([problems[places[0]] for places in alike.values()])
            with self._working:
                self._threads.append(policy.threads(prompts, group, seeds=[0] * len(prompts)))
        self._heard = {
            place: _Heard(problem, len(prompts[self._rows[place][0]].ids))
            for place, problem in problems.items()
        }
        self._starts = {}
        for place in self._heard:
            self._mark(place)
            self._starts[place] = self._heard[place].back

    def open(self, indices: Sequence[SampleIndex]) -> None:
        for place in indices:
            talk = self._heard[place]
            talk.deaf, talk.back = False, self._starts[place]
            talk.back()

    def said(self, said: Mapping[SampleIndex, PolicyTurn]) -> None:
        pieces: dict[SampleIndex, Sequence[Continuation]] = {}
        for place, words in said.items():
            talk = self._heard[place]
            if talk.deaf:
                continue
            try:
                with self._working:
                    talk.last = self._tokens(talk, words)
            except DataError as error:
                self._give_up(talk, str(error))
                continue
            if talk.last and self._has_room(talk, len(talk.last)):
                pieces[place] = [Continuation(talk.last)] * len(self._threads)
            talk.turns += 1
        own, base = self._hear(pieces, score=True)
        for place in pieces:
            talk, words = self._heard[place], said[place]
            read = read_look_call(words, talk.problem.tools, len(talk.problem.images))
            _, ends = token_ends(self.policies[0].tokenizer, talk.last)
            plan = channel_lengths(ends, read.action_start) if read.action_start else 0
            step = (torch.arange(len(talk.last)) >= plan).long()
            of_plan, of_action = step_log_ratios(own[place].cpu(), base[place].cpu(), step, 2).tolist()
            words.values |= {LOG_RATIO: of_plan + of_action, LOG_RATIO_PLAN: of_plan}

    def shown(self, replies: Mapping[SampleIndex, Observation]) -> None:
        pieces: dict[SampleIndex, Sequence[Continuation]] = {}
        for place, reply in replies.items():
            talk = self._heard[place]
            if talk.deaf:
                continue
            if reply.undo:
                talk.back()
            else:
                self._mark(place)
            try:
                with self._working:
                    encoded = [
                        without_written_end(talk.last, writer.encode(talk.problem, reply, talk.turns))
                        for writer in self._writers
                    ]
            except DataError as error:
                self._give_up(talk, str(error))
                continue
            if self._has_room(talk, len(encoded[0].tokens)):
                pieces[place] = encoded
        self._hear(pieces, score=False)

    def _mark(self, place: SampleIndex) -> None:
        """Remember where a conversation stands before something is shown in it."""
        talk = self._heard[place]
        models = [threads.mark([self._rows[place]]) for threads in self._threads]
        used, last, turns = talk.used, talk.last, talk.turns

        def back() -> None:
            for go_back in models:
                go_back()
            talk.used, talk.last, talk.turns = used, last, turns

        talk.back = back

    def _hear(
        self, pieces: Mapping[SampleIndex, Sequence[Continuation]], score: bool
    ) -> tuple[dict[SampleIndex, Tensor], ...]:
        """Both models read what is new; with ``score`` log-probabilities of V_φ, and those of V_φ0."""
        if not pieces:
            return tuple({} for _ in self._threads)
        for place, piece in pieces.items():
            self._heard[place].used += len(piece[0].tokens)
        found = []
        for number, threads in enumerate(self._threads):
            new = {self._rows[place]: piece[number] for place, piece in pieces.items()}
            with self._working:
                told = threads.append(new, score)
            found.append({place: told[row] for place, row in self._rows.items() if row in told})
        return tuple(found)

    def _tokens(self, talk: _Heard, words: PolicyTurn) -> list[int]:
        """A turn of R as tokens of the verifier.

        Raises:
            DataError: They hold an image's place, which no words may.
        """
        if self.reads_tokens:
            return list(words.tokens)
        policy, writer = self.policies[0], self._writers[0]
        ids = policy.tokenizer(words.text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        if set(ids) & {*policy.suppressed_tokens}:
            raise DataError(
                f"problem {talk.problem.id}, turn {talk.turns}: the words hold an image token of the verifier"
            )
        if not talk.end:
            [first, *_] = writer.encode(talk.problem, Observation("."), 1).tokens
            talk.end = [first] if first in policy.stop_tokens else []
        return [*ids, *(talk.end if words.finish == Finish.STOP else [])]

    def _has_room(self, talk: _Heard, more: int) -> bool:
        limit = longest_row(self.policies[0].model)
        if limit is None or talk.used + more < limit:
            return True
        self._give_up(talk, f"{talk.used + more} tokens, and the verifier reads {limit}")
        return False

    def _give_up(self, talk: _Heard, reason: str) -> None:
        talk.deaf = True
        message = f"problem {talk.problem.id}: the verifier cannot follow a conversation any more: {reason}"
        note(logger, "not_verified", message, problem=talk.problem.id, turn=talk.turns, reason=reason)


class StoppingVerifier:
    """The rule that ends looking, and the verifier that measures each step for it.

    A verifier is asked wherever one is named: with another rule its Δr is measured and stops nothing.

    Args:
        settings: The rule and the verifier.

    Raises:
        ConfigError: There is no such rule; or the verifier is to stop and is not named, or has no ε.
        DataError: The calibration beside the verifier cannot be read.
    """

    def __init__(self, settings: VisualConfig) -> None:
        self.settings = settings
        served = [name for name in (settings.verifier, settings.verifier_base) if name and is_served(name)]
        if served and (len(served) != 2 or any("#" not in name for name in served)):
            raise ConfigError(
                f"{served[0]}: a verifier behind a server needs its base behind one, too, both as URL#MODEL "
                "(verifier and verifier_base)"
            )
        self.rule = _rule(settings)
        self._models: dict[tuple[str, str | None], tuple[Policy, Policy | None]] = {}
        """By the names of verifier and base what was loaded."""
        self._lock = Lock()
        """Held while they load or work."""

    def changed(self, settings: VisualConfig) -> StoppingVerifier:
        """Return the rule that ends looking with other settings; models that were loaded for these are not
        loaded again.

        Raises:
            ConfigError: See the class.
            DataError: See the class.
        """
        made = StoppingVerifier(settings)
        made._models, made._lock = self._models, self._lock
        return made

    def listener(self, reasoner: Policy | None) -> RolloutHook | None:
        """The verifier for the conversations of one rollout; None where there is none.

        Its models are loaded when it is first asked for. A verifier that is the reasoner itself is not loaded
        again.

        Raises:
            ConfigError: It cannot be loaded, or has no base.
        """
        path, base = self.settings.verifier, self.settings.verifier_base
        if path is None:
            return None
        if is_served(path):
            assert base is not None

            from selfverify.visual.served_verifier import ServedModel, ServedVerifier  # it needs aiohttp

            return ServedVerifier(ServedModel.of(path, "verifier"), ServedModel.of(base, "verifier"))
        with self._lock:
            if (path, base) not in self._models:
                own = reasoner if reasoner is not None and reasoner.config.path == path else None
                policy = own or (
                    Policy.load(path) if reasoner is None else Policy.load(reasoner.config.for_model(path))
                )
                below = None if base is None else Policy.load(policy.config.for_model(base))
                self._models[path, base] = policy, below
        return StepVerifier(*self._models[path, base], reasoner=reasoner, lock=self._lock)


def _rule(settings: VisualConfig) -> StopRule:
    if settings.stop != "verifier":
        return make_stop_rule(settings.stop)
    if settings.verifier is None:
        raise ConfigError("stop: verifier needs the verifier's folder (verifier)")
    rule, epsilon, folder = settings.rule, settings.epsilon, Path(settings.verifier)
    if epsilon is None and is_served(settings.verifier):
        raise ConfigError("epsilon: a verifier behind a server has no calibration beside it; set epsilon")
    if epsilon is None or (rule is None and (folder / STOPPING_FILE).exists()):
        found = StopCalibration.load(folder)
        if rule is not None and rule != found.rule:
            raise ConfigError(
                f"{folder / STOPPING_FILE} holds ε for the rule {found.rule}, and the rule is {rule}; set "
                "epsilon"
            )
        rule, epsilon = found.rule, found.epsilon if epsilon is None else epsilon
    if rule == "absolute" and epsilon < 0:
        raise ConfigError(f"epsilon: |Δr| is never below {epsilon}; ε has to be above 0")
    return Verified(rule or "signed", epsilon)
