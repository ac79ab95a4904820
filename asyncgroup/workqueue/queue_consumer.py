"""QueueConsumer: one of several consumers of a work queue in one process; LocalDispatch distributes the deliveries."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import chain
from typing import Final, Self

from asyncgroup.errors import ConfigError
from asyncgroup.hashing.key_ranges import KeyRange
from asyncgroup.workqueue.batch_receive import DeliveryBatch, receive_batch
from asyncgroup.workqueue.delivery import Delivery, DeliveryState, Work
from asyncgroup.workqueue.dispatcher import Dispatcher
from asyncgroup.workqueue.interceptors import QueueInterceptors
from asyncgroup.workqueue.local_consumers import ConsumerSelector, LocalConsumer
from asyncgroup.workqueue.policies import BatchPolicy
from asyncgroup.workqueue.receiver import Deliveries, Receiver, Waiters
from asyncgroup.workqueue.workers import DeliveryHandler, WorkerPools, Workers

__all__ = ["LocalDispatch", "QueueConsumer"]

_NONE: Final[deque[Delivery]] = deque(maxlen=0)


class LocalDispatch:
    """Dispatches the deliveries of a queue to the inboxes of its local consumers, as far as they have permits.

    Modes with an order have one consumer, which has no inbox. In Mode.KEY_SHARED a delivery whose consumer has no permits is
    parked, and those of other consumers go on. Parked deliveries count as queued, so that a slow consumer delays its
    partitions only when their receiver queues are full.
    """

    def __init__(
        self, group_id: str, dispatcher: Dispatcher, interceptors: QueueInterceptors, pools: WorkerPools
    ) -> None:
        self.group_id = group_id
        self.dispatcher = dispatcher
        self.interceptors = interceptors
        self.pools = pools
        self._queue_demand = dispatcher.ready.demand
        self._selector = ConsumerSelector(dispatcher.mode)
        self._receivers: dict[str, Receiver] = {}
        self._parked: dict[str, deque[Delivery]] = {}
        """By the name of the consumer whose keys they have; those of a gap by the empty name."""

    def __repr__(self) -> str:
        return f"<LocalDispatch: {self._selector!r}, {sum(map(len, self._parked.values()))} parked>"

    @property
    def is_used(self) -> bool:
        """Whether the queue has local consumers."""
        return bool(self._receivers)

    @property
    def gaps(self) -> tuple[KeyRange, ...]:
        """The hash ranges without a consumer; none while the queue has no local consumers."""
        return self._selector.gaps if self.is_used else ()

    def ranges_of(self, name: str) -> tuple[KeyRange, ...]:
        """Return the hash ranges of a consumer; none unless the mode is Mode.KEY_SHARED."""
        return self._selector.ranges.get(name, ())

    def add(self, local: LocalConsumer) -> Receiver:
        """Add a consumer; return its receiver. Raises as `ConsumerSelector.add`."""

        def take() -> Delivery | None:
            delivery = local.take() if self.dispatcher.is_open else None  # else the queue is paused
            if delivery is not None:
                self.dispatcher.start(delivery)
            return delivery

        self._selector.add(local)
        local.on_refill = lambda: self._refill(local)
        if self.dispatcher.mode.in_order:
            # the only consumer; records that are given back would come after those of an inbox, and so out of order
            receiver = Receiver(self.group_id, self.dispatcher.take, Waiters(), self.interceptors)
        else:
            receiver = Receiver(self.group_id, take, Waiters(), self.interceptors)
        self._receivers[local.name] = receiver
        self.dispatcher.ready.demand = self
        self._share_out()
        return receiver

    def remove(self, local: LocalConsumer) -> None:
        """Remove a consumer: what waits in its inbox goes to the others, or after the last one to the queue itself."""
        if local.closed:  # another one may have its name now
            return
        receiver = self._receivers.pop(local.name, None)
        if receiver is not None:
            receiver.end(None)
        if not self.is_used:
            # before deliveries are given back: these wake the tasks that read the queue itself
            self.dispatcher.ready.demand = self._queue_demand
        # the newest first: each that is released is the next to be delivered
        for delivery in reversed(self._selector.remove(local)):
            self.dispatcher.outcomes.release(delivery)
        if self.is_used:
            self._share_out()
        else:
            self.withdraw()

    def wake(self, records: int) -> None:  # noqa: ARG002  the signature of Demand
        """Records have become ready: dispatch them to consumers with permits, and wake the tasks that wait for a delivery."""
        self._dispatch()

    def wake_later(self, ready: Callable[[], int]) -> None:  # noqa: ARG002  the signature of Demand
        """As `wake`: the tasks that wait are woken in the next turn of the event loop in any case."""
        self._dispatch()

    def _dispatch(self) -> None:
        dispatcher = self.dispatcher
        if dispatcher.mode.in_order:
            for receiver in self._receivers.values():
                receiver.waiters.wake_later(dispatcher.ready.count)
            return
        # the ack timeout begins when a delivery is taken from an inbox
        while self._selector.has_permits and (delivery := dispatcher.take(starts=False)) is not None:
            self._put(delivery)
        for local in self._selector.consumers:
            self._receivers[local.name].waiters.wake_later(local.count)

    def _put(self, delivery: Delivery) -> None:
        key = delivery.ordering_key
        if (consumer := self._selector.select(key)) is not None:
            consumer.put(delivery)
            return
        owner = None if key is None else self._selector.owner(key)
        self._parked.setdefault("" if owner is None else owner.name, deque()).append(delivery)
        delivery._work.park()

    def _refill(self, local: LocalConsumer) -> None:
        """A consumer has permits again: dispatch what is parked for it, then ready records."""
        parked = self._parked.get(local.name, _NONE)
        while parked and local.has_permits:
            delivery = parked.popleft()
            delivery._work.unpark()
            if delivery.state is DeliveryState.ACQUIRED:
                local.put(delivery)
        self._dispatch()

    def _share_out(self) -> None:
        """The consumers have changed: dispatch or park again what is parked, then dispatch ready records."""
        parked, self._parked = self._parked, {}
        for delivery in chain.from_iterable(parked.values()):
            delivery._work.unpark()
            if delivery.state is DeliveryState.ACQUIRED:
                self._put(delivery)
        self._dispatch()

    def withdraw(self, work: Work | None = None) -> None:
        """Give back the deliveries of a partition (None: of all) that no consumer has received yet."""
        inboxes = [consumer.inbox for consumer in self._selector.consumers]
        for delivery in [each for inbox in (*inboxes, *self._parked.values()) for each in reversed(inbox)]:
            if delivery.state is DeliveryState.ACQUIRED and work in (None, delivery._work):
                self.dispatcher.outcomes.release(delivery)
        self.drop_ended()

    def drop_ended(self) -> None:
        """Drop deliveries that have ended in an inbox: their partition was revoked, or its log has changed."""
        for consumer in self._selector.consumers:
            consumer.drop_ended()
        for name, parked in list(self._parked.items()):
            kept = deque(each for each in parked if each.state is DeliveryState.ACQUIRED)
            for delivery in parked:
                if delivery.state is not DeliveryState.ACQUIRED:
                    delivery._work.unpark()
            self._parked[name] = kept

    def end(self, failure: BaseException | None) -> None:
        """Begin no more deliveries."""
        for receiver in self._receivers.values():
            receiver.end(failure)


class QueueConsumer:
    """One of several consumers of a WorkQueue in this process; made by `WorkQueue.consumer`.

        async with queue.consumer("fast", priority=0) as fast, queue.consumer("slow", priority=1) as slow: ...

    It is read as a queue is: `run`, `async for`, `receive`, `batch_receive`. Deliveries wait in its inbox, as many as it has
    permits, in the modes Shared and Key_Shared; when it closes, they go to the other consumers. The ack timeout begins
    when a delivery is taken from the inbox.
    """

    def __init__(
        self, dispatch: LocalDispatch, local: LocalConsumer, concurrency: int, cancels_expired: bool
    ) -> None:
        self._dispatch = dispatch
        self._local = local
        self._concurrency = concurrency
        self._cancels_expired = cancels_expired
        self._receiver = dispatch.add(local)

    def __repr__(self) -> str:
        return f"<QueueConsumer {self._local!r}>"

    @property
    def name(self) -> str:
        """The consumer's name, unique in the queue."""
        return self._local.name

    @property
    def priority(self) -> int:
        """Its priority; 0 is the highest."""
        return self._local.priority

    @property
    def key_ranges(self) -> tuple[KeyRange, ...]:
        """The hash ranges of its keys with Mode.KEY_SHARED; otherwise empty."""
        return self._dispatch.ranges_of(self.name)

    async def run(self, handle: DeliveryHandler) -> None:
        """Call `handle(delivery)` for each delivery of this consumer, until it or the queue closes; see `WorkQueue.run`."""
        workers = Workers(
            self._dispatch.dispatcher.outcomes,
            self._receiver,
            handle,
            self._concurrency,
            cancels_expired=self._cancels_expired,
        )
        await self._dispatch.pools.run(workers)

    def __aiter__(self) -> Deliveries:
        """Return an iterator of this consumer's deliveries, see `WorkQueue`."""
        return Deliveries(self._receiver)

    async def receive(self) -> Delivery:
        """Return the next delivery of this consumer; see `WorkQueue.receive`."""
        return await self._receiver.receive_own()

    async def batch_receive(self, policy: BatchPolicy | None = None) -> DeliveryBatch:
        """Return the next deliveries of this consumer; see `WorkQueue.batch_receive`."""
        return await receive_batch(self._receiver, self._dispatch.dispatcher.outcomes, check_policy(policy))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Begin no more deliveries; those of its inbox go to the other consumers. Open deliveries may still be ended."""
        self._dispatch.remove(self._local)


def check_policy(policy: BatchPolicy | None) -> BatchPolicy:
    """Return the policy, or the default for None. Raises ConfigError for another value."""
    if policy is None:
        return BatchPolicy()
    if not isinstance(policy, BatchPolicy):
        raise ConfigError("policy", policy, "None or BatchPolicy(…)")
    return policy
