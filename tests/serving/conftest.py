"""A loop for servers, and a picture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from serving_servers import Loop, data_url, png


@pytest.fixture
def servers() -> Iterator[Loop]:
    """Closed after the test, with everything that was opened in it."""
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture
def picture() -> str:
    """A small picture's data URL."""
    return data_url(png())
