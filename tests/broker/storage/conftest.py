"""Fixtures of the storage tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from asyncgroup.broker.metadata import metadata_log


@pytest.fixture
def patch() -> Iterator[pytest.MonkeyPatch]:
    """Patches of a disk; the metadata log has many snapshots, and `fsync` takes no time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata_log, "SNAPSHOT_AFTER", 300)
        patch.setattr(os, "fsync", lambda _descriptor: None)
        yield patch
