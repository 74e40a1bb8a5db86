"""Errors that a user can act on, and the package's version, which the build reads here.

Every message names the thing that is wrong and what to do about it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class SelfVerifyError(Exception):
    """Base of every error this library raises on purpose."""


class ConfigError(SelfVerifyError):
    """A recipe, an override or a combination of settings that cannot work."""


@contextmanager
def needs(what: str, extra: str) -> Iterator[None]:
    """Say which extra to install where a module inside cannot be imported.

    Args:
        what: The beginning of the sentence: what needs it.
        extra: The extra of this package.

    Raises:
        ConfigError: A module is missing.
    """
    try:
        yield
    except ImportError as error:
        raise ConfigError(f"{what}: pip install 'selfverify[{extra}]' ({error})") from None


class CheckpointError(SelfVerifyError):
    """A checkpoint that cannot be written, read, or does not fit the model."""


class SamplingError(SelfVerifyError):
    """Sampling has failed: an engine that is not this library's own, or the episodes' threads."""


class HungError(SamplingError):
    """Too many threads of a process hang in episodes for a run to go on."""


class DataError(SelfVerifyError):
    """A problem, image or file that cannot be used; the message names it."""

    code = "invalid_value"
    """OpenAI's name of the fault."""


class FileError(SelfVerifyError, OSError):
    """A file or folder that cannot be read or written; made as `OSError` is, by number, reason and file."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


class IrregularFileError(FileError):
    """A folder, a pipe, a socket or a device stands where a regular file is needed."""


@dataclass(eq=False, repr=False)
class ServerError(SelfVerifyError):
    """A model server that cannot be reached, refuses, or answers with what cannot be used.

    Args:
        message: The fault in a sentence.
        status: The HTTP status that fits it, the server's own where it gave one.
        code: OpenAI's name of the fault, such as ``model_not_found``.
        retry: Whether the same request may succeed a moment later.
        retry_after: Seconds after which the server wants to be asked again.
        detail: Words for those alone who chose the server, such as its address.
    """

    message: str
    status: int = 502
    code: str | None = None
    retry: bool = False
    retry_after: float | None = None
    detail: str = ""

    def __post_init__(self) -> None:
        super().__init__(f"{self.message} ({self.detail})" if self.detail else self.message)


__version__ = "0.1.0"
