"""AndroidWorld's server for selfverify: the kind ``android-world`` of the task ``environment``."""

from selfverify_android_world.environment import AndroidWorld, AndroidWorldConfig
from selfverify_android_world.source import AndroidWorldSource, AndroidWorldSourceConfig

__all__ = ["SOURCES", "AndroidWorld", "AndroidWorldConfig", "AndroidWorldSource"]

SOURCES = {"android-world": AndroidWorldSourceConfig}
