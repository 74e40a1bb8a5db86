"""AndroidWorld's server for selfverify: the kind ``android-world`` of the task ``environment``."""

from selfverify_android_world.environment import AndroidWorld, AndroidWorldSettings
from selfverify_android_world.source import AndroidWorldConfig, AndroidWorldSource

__all__ = ["SOURCES", "AndroidWorld", "AndroidWorldSettings", "AndroidWorldSource"]

SOURCES = {"android-world": AndroidWorldConfig}
