"""Fixtures of the tests of logs."""

from __future__ import annotations

import pytest

from asyncgroup.broker.log.partition_log import PartitionLog


@pytest.fixture
def log() -> PartitionLog:
    """An empty log."""
    return PartitionLog("t", 0)
