"""What other libraries' trainers leave behind in the process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from accelerate.state import AcceleratorState


@pytest.fixture(autouse=True)
def own_accelerator() -> Iterator[None]:
    """TRL turns mixed precision on for the whole process, where later tests' learners would find it."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
