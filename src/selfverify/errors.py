"""Errors a user can act on. Every message names the thing that is wrong and what to do about it."""


class SelfVerifyError(Exception):
    """Base of every error this library raises on purpose."""


class ConfigError(SelfVerifyError):
    """A recipe, an override or a combination of settings that cannot work."""


class CheckpointError(SelfVerifyError):
    """A checkpoint that cannot be written, read, or does not fit the model."""


class SamplingError(SelfVerifyError):
    """The engine that samples, if it is not this library's own, has failed."""


class DataError(SelfVerifyError):
    """A problem, image or file that cannot be used; the message names it."""
