"""A model behind a server whose steps are heard by a verifier that runs here (VTS-V's GPT-4o rows)."""

from __future__ import annotations

from threading import Lock

from selfverify.core.episode import Observation, PolicyTurn, RolloutHook
from selfverify.core.problem import Problem
from selfverify.rollouts.server_sampler import Speaker

_PLACE = (0, 0)


class HeardSpeaker(Speaker):
    """Tells a listener what a speaker says, before the episode replies, and what it is shown.

    Args:
        speaker: Speaks.
        listener: Follows this conversation alone.
        problem: What the conversation is about.
        lock: Held while the listener works: its models serve several conversations, and a model computes
            with one adapter at a time.
    """

    def __init__(self, speaker: Speaker, listener: RolloutHook, problem: Problem, lock: Lock) -> None:
        self.speaker, self.listener, self.lock = speaker, listener, lock
        with lock:
            listener.begin({_PLACE: problem})

    def hear(self, reply: Observation) -> None:
        """See `Speaker`."""
        self.speaker.hear(reply)
        with self.lock:
            self.listener.shown({_PLACE: reply})

    def speak(self, turn: int) -> PolicyTurn:
        """See `Speaker`."""
        said = self.speaker.speak(turn)
        with self.lock:
            self.listener.said({_PLACE: said})
        return said
