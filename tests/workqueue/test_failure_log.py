"""FailureLog: one warning with a traceback in a second, and the number of those left out."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from asyncgroup.model import Record
from asyncgroup.workqueue.delivery import Delivery
from asyncgroup.workqueue.workers import FailureLog


async def test_one_warning_in_a_second(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "asyncgroup.workqueue")
    log = FailureLog()
    queue: Any = None
    delivery = Delivery(Record("orders", 0, 7), 2, None, None, queue)
    for seconds in (0.0, 0.1, 0.1, 1.0, 5.0):
        await asyncio.sleep(seconds)
        log.failed(delivery, ValueError("no customer"))
    texts = [record.getMessage() for record in caplog.records]
    where = "the handler of <Delivery orders-0@7, attempt 2: acquired> raised ValueError: no customer"
    assert texts == [where, f"{where} (2 more since the last message)", where]
    assert all(record.exc_info for record in caplog.records)
