"""`batch_receive`: several deliveries at a time, limited by their number, their bytes, and time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self, overload

from asyncgroup.workqueue.delivery import FAILURES, Delivery, DeliveryState
from asyncgroup.workqueue.outcomes import Outcomes
from asyncgroup.workqueue.policies import BatchPolicy
from asyncgroup.workqueue.receiver import Receiver

__all__ = ["DeliveryBatch", "has_room", "is_full", "receive_batch"]


class DeliveryBatch(Sequence[Delivery]):
    """Deliveries of one `batch_receive`, possibly none; each has its own outcome.

        async with await queue.batch_receive() as batch: ...    # ack at the end, nack after an exception

    The block ends only those deliveries that were not ended in it.
    """

    def __init__(self, deliveries: list[Delivery], outcomes: Outcomes) -> None:
        self._deliveries = deliveries
        self._outcomes = outcomes

    @overload
    def __getitem__(self, index: int) -> Delivery: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Delivery]: ...
    def __getitem__(self, index: int | slice) -> Delivery | Sequence[Delivery]:
        return self._deliveries[index]

    def __len__(self) -> int:
        return len(self._deliveries)

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self._deliveries)

    def __repr__(self) -> str:
        return f"<DeliveryBatch: {len(self)} deliveries, {len(self._acquired())} open>"

    def _acquired(self) -> list[Delivery]:
        return [each for each in self._deliveries if each.state is DeliveryState.ACQUIRED]

    def _ack(self, deliveries: list[Delivery]) -> None:
        """Acknowledge all; then raise the first error of an interceptor, which has failed its delivery only."""
        refused: BaseException | None = None
        for delivery in deliveries:
            if delivery.state is DeliveryState.ACQUIRED:  # a callback may have ended it
                try:
                    self._outcomes.ack(delivery)
                except FAILURES as error:
                    refused = refused or error
        if refused is not None:
            raise refused

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        left = self._acquired()
        if error is None:
            self._ack(left)
        elif isinstance(error, Exception):
            for delivery in left:
                if delivery.state is DeliveryState.ACQUIRED:  # in order, a nack ends those after it
                    self._outcomes.nack(delivery, None, error)
        else:  # cancelled: neither done nor failed
            for delivery in reversed(left):
                self._outcomes.release(delivery)


async def receive_batch(receiver: Receiver, outcomes: Outcomes, policy: BatchPolicy) -> DeliveryBatch:
    """Return deliveries until the first limit is reached; none if that is the timeout.

    A cancelled call gives all deliveries back, and a delivery that is lost while others are awaited is left out. Raises as
    `Receiver.receive`.
    """
    receiver.is_read = True
    await receiver.give_turn()
    gathered: list[Delivery] = []
    try:
        async with asyncio.timeout(policy.timeout):
            while not _fill(gathered, receiver, outcomes, policy):
                receiver.check_open()
                await receiver.waiters.wait()
    except TimeoutError:
        pass
    except BaseException:
        for delivery in reversed(gathered):
            if delivery.state is DeliveryState.ACQUIRED:
                outcomes.release(delivery)
        raise
    reader = asyncio.current_task()
    for delivery in gathered:
        delivery._reader = reader
    return DeliveryBatch([each for each in gathered if each.state is DeliveryState.ACQUIRED], outcomes)


def _fill(gathered: list[Delivery], receiver: Receiver, outcomes: Outcomes, policy: BatchPolicy) -> bool:
    """Take what is ready; return whether the batch is complete."""
    size = sum(map(_size, gathered))
    while not is_full(policy, len(gathered), size):
        delivery = receiver.take()
        if delivery is None:
            return False
        if gathered and not has_room(policy, size + _size(delivery)):
            outcomes.release(delivery)
            return True
        gathered.append(delivery)
        size += _size(delivery)
    return True


def is_full(policy: BatchPolicy, records: int, size: int) -> bool:
    """Return whether a batch of this many records and bytes takes no other record."""
    return (policy.max_records is not None and records >= policy.max_records) or (
        policy.max_bytes is not None and size >= policy.max_bytes
    )


def has_room(policy: BatchPolicy, size: int) -> bool:
    """Return whether a batch may have `size` bytes; its first record may be larger."""
    return policy.max_bytes is None or size <= policy.max_bytes


def _size(delivery: Delivery) -> int:
    record = delivery.record
    return len(record.value or b"") + len(record.key or b"")
