"""A fixture that hears what asyncio only logs: futures and tasks whose exception nobody ever fetched."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fails a test after which asyncio complains; the garbage is collected first, since it does so from there."""
    gc.freeze()  # only what the test itself makes has to be gone through afterwards
    yield
    gc.collect()
    gc.unfreeze()
    said = [
        record.getMessage()
        for when in ("setup", "call", "teardown")
        for record in caplog.get_records(when)  # type: ignore[arg-type]
        if record.name == "asyncio"
    ]
    assert not said, said
