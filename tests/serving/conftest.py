"""A picture, and gateways that the tests of a file share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from selfverify.policy.policy import Policy
from selfverify.serving.app import Gateway
from selfverify.serving.config import BestOfConfig, GatewayConfig
from selfverify.serving.local import Local
from serving_servers import FakeUpstream, Loop, data_url, png


@pytest.fixture
def picture() -> str:
    """A small picture's data URL."""
    return data_url(png())


SMALL = GatewayConfig(best_of=BestOfConfig(n=2), max_body_mb=0.5, max_megapixels=1)


@pytest.fixture(scope="module")
def running() -> Iterator[Loop]:
    """A loop for the servers of a file."""
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def fake() -> FakeUpstream:
    """The server of `before`."""
    return FakeUpstream()


@pytest.fixture(scope="module")
def before(running: Loop, fake: FakeUpstream) -> str:
    """The address of a gateway before ``fake``."""
    return running.before(fake, SMALL)[0]


@pytest.fixture(scope="module")
def here(running: Loop, load_policy: Callable[..., Policy]) -> str:
    """The address of a gateway that runs a tiny model, called ``m``."""
    return running.gateway(Gateway(Local(load_policy(), "m"), SMALL))
