"""Environments with Gymnasium's interface for selfverify."""

from selfverify_gymnasium.environment import GymnasiumEnvironment

__all__ = ["GymnasiumEnvironment"]
