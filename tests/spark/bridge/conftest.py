"""Fixtures for the tests of the bridge."""

from __future__ import annotations

import pytest

from asyncgroup.spark.bridge import foreach_batch
from tests.spark.bridge.fakes import LoopJobs


@pytest.fixture
def loop_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run calls of the function as steps of the event loop (`LoopJobs`)."""
    monkeypatch.setattr(foreach_batch, "SparkJobs", LoopJobs)
