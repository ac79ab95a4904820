"""A fixture that fails a test if asyncio logs an error, such as an exception that was never retrieved."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def no_asyncio_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a test during which asyncio logs anything. asyncio logs from destructors, so garbage is collected first."""
    gc.collect()  # what earlier tests left: objects that are frozen are never collected
    gc.freeze()  # the collection below visits only objects of the test; a full one takes longer than most tests
    yield
    gc.collect()
    messages = [
        record.getMessage()
        for when in ("setup", "call", "teardown")
        for record in caplog.get_records(when)  # type: ignore[arg-type]
        if record.name == "asyncio"
    ]
    assert not messages, messages
