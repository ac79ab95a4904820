"""The way of records through a producer, from the lookup of their topic to the sender, as one object for transactions."""

from __future__ import annotations

import asyncio

from asyncgroup.errors import AsyncGroupError
from asyncgroup.lifecycle import copy_error
from asyncgroup.producer.accumulator import RecordAccumulator
from asyncgroup.producer.delivery_tracker import DeliveryTracker
from asyncgroup.producer.router import Router
from asyncgroup.producer.sender import Sender

__all__ = ["RecordPath"]


class RecordPath:
    """All records of a producer that are not done yet."""

    def __init__(
        self, accumulator: RecordAccumulator, sender: Sender, router: Router, deliveries: DeliveryTracker
    ) -> None:
        self._accumulator = accumulator
        self._sender = sender
        self._router = router
        self._deliveries = deliveries

    def __repr__(self) -> str:
        return f"<RecordPath {self._accumulator!r}>"

    def wake(self) -> None:
        """Plan again: batches may be sent that had to wait."""
        self._sender.wake()

    def use_producer_id(self, producer_id: int, epoch: int) -> None:
        """Number all batches from 0 on under this producer id and epoch; nothing is in flight."""
        self._accumulator.remove_done()
        self._accumulator.use_transactional_id(producer_id, epoch)

    async def flush(self, refusal: AsyncGroupError) -> None:
        """Fail the callers that wait for memory, and wait until all accepted records are done."""
        self._accumulator.memory.fail(lambda: copy_error(refusal))
        if lookups := self._router.lookups():
            await asyncio.wait(lookups)
        self._accumulator.close_open()
        self._sender.wake()
        await self._deliveries.wait(self._accumulator.incomplete)

    def fail_all(self, error: AsyncGroupError) -> None:
        """Fail all records that are not done, and the callers that wait for memory."""
        self._accumulator.memory.fail(lambda: copy_error(error))
        self._router.fail_all(error)
        self._sender.fail_all(error)
        self._sender.wake()

    def forget_lost(self) -> None:
        """Forget the lost records of `enqueue`: the error of their transaction reports them."""
        self._deliveries.drain_lost()

    async def wait_idle(self) -> bool:
        """Wait until no Produce request is in flight; return whether the result of a batch is unknown."""
        await self._sender.wait_idle()
        return self._accumulator.remove_done()
