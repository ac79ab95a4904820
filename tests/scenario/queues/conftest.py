"""Fixtures of the stories of work queues."""

from __future__ import annotations

import pytest

from tests.stories.queue_members import Gates


@pytest.fixture
def gates() -> Gates:
    """Work that waits for the gate of its offset."""
    return Gates()
