"""A loop for servers, and a picture."""

from __future__ import annotations

import pytest

from serving_servers import data_url, png


@pytest.fixture
def picture() -> str:
    """A small picture's data URL."""
    return data_url(png())
