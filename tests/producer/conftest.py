"""Fixtures of the producer tests."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_asyncio_errors(no_asyncio_errors: None) -> None:
    """Fail each test here during which asyncio logs anything."""
