"""Fixtures of the tests of offsets."""

from __future__ import annotations

import pytest

from tests.offsets.scene import Scene


@pytest.fixture
def scene() -> Scene:
    """A committer and the brokers that it commits to."""
    return Scene()
