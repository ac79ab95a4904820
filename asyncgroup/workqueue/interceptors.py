"""Interceptors of a work queue, as Pulsar's ConsumerInterceptor: called when a delivery begins and ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from asyncgroup.interceptor import check_interceptors, listeners
from asyncgroup.lifecycle import describe_error
from asyncgroup.model import Record, TopicPartition
from asyncgroup.workqueue.delivery import FAILURES, DeliveryState

if TYPE_CHECKING:
    from asyncgroup.workqueue.delivery import Delivery

__all__ = ["QueueInterceptor", "QueueInterceptors"]

_log = logging.getLogger("asyncgroup.workqueue")


class QueueInterceptor:
    """A base class for interceptors, given as `interceptors=[…]` to a WorkQueue; its methods do nothing.

    Override any of the methods; an object of another class with at least one of them will do as well. So will a plain function:
    it is `before_consume`. They are plain methods, run on the event loop, and return at once.

    An exception in `before_consume` or `on_acknowledge` fails the delivery, so that its record is delivered again: no record
    is acknowledged although an interceptor has refused that. An exception in the other methods is logged.
    """

    def before_consume(self, delivery: Delivery) -> None:
        """A delivery is about to begin."""

    def on_acknowledge(self, delivery: Delivery) -> None:
        """A delivery is about to be acknowledged."""

    def on_negative_ack(self, delivery: Delivery, error: BaseException | None) -> None:
        """A delivery was nacked, or its handler raised `error`."""

    def on_ack_timeout(self, delivery: Delivery) -> None:
        """The ack timeout of a delivery has passed."""

    def on_dead_letter(self, delivery: Delivery, reason: str) -> None:
        """A record was copied to the dead letter topic, and is acknowledged now."""

    def became_active(self, tp: TopicPartition) -> None:
        """This consumer gets the records of a partition from now on (Pulsar's `ConsumerEventListener`)."""

    def became_inactive(self, tp: TopicPartition) -> None:
        """This consumer gets no more records of a partition: another one does, or will."""


QUEUE_METHODS: Final = (
    "before_consume",
    "on_acknowledge",
    "on_negative_ack",
    "on_ack_timeout",
    "on_dead_letter",
    "became_active",
    "became_inactive",
)
"""What a queue calls; a function stands for the first one."""


class QueueInterceptors:
    """Calls interceptors in their order."""

    def __init__(
        self,
        interceptors: Iterable[object] = (),
        decode: Callable[[Record], object] | None = None,
    ) -> None:
        """`decode` makes `Delivery.decoded`. Raises ConfigError unless each is a function, or has one of the QUEUE_METHODS."""
        self._decode = decode
        self._all = check_interceptors(interceptors, QUEUE_METHODS)
        self._methods = {
            name: tuple(method for _, method in listeners(self._all, name, QUEUE_METHODS, QueueInterceptor))
            for name in QUEUE_METHODS
        }
        self._before_consume = self._methods["before_consume"]
        self._on_acknowledge = self._methods["on_acknowledge"]

    def __repr__(self) -> str:
        return f"<QueueInterceptors: {len(self._all)}>"

    def __bool__(self) -> bool:
        return bool(self._all) or self._decode is not None

    def before_consume(self, delivery: Delivery) -> bool:
        """Decode the record and ask the interceptors; return whether to deliver the record. If not, the delivery has failed.

        After another BaseException, which is raised, the delivery is neither done nor failed.
        """
        try:
            return self._is_accepted(delivery)
        except BaseException:
            if delivery.state is DeliveryState.ACQUIRED:
                delivery._outcomes.release(delivery)
            raise

    def _is_accepted(self, delivery: Delivery) -> bool:
        if self._decode is not None:
            try:
                delivery.decoded = self._decode(delivery.record)
            except FAILURES as error:
                _log.warning("%r cannot be decoded: %s", delivery, describe_error(error))
                delivery._outcomes.discard(delivery, f"cannot be decoded: {describe_error(error)}", error)
                return False
        try:
            for before_consume in self._before_consume:
                before_consume(delivery)
        except FAILURES as error:
            _log.exception("before_consume of %r raised: the record is delivered again", delivery)
            delivery._outcomes.nack(delivery, None, error)
            return False
        return True

    def before_ack(self, delivery: Delivery) -> None:
        """Raises what an interceptor raises; the delivery is not acknowledged then."""
        for on_acknowledge in self._on_acknowledge:
            on_acknowledge(delivery)

    def on_nack(self, delivery: Delivery, error: BaseException | None) -> None:
        """A delivery has failed."""
        self._call("on_negative_ack", delivery, error)

    def on_ack_timeout(self, delivery: Delivery) -> None:
        """The ack timeout of a delivery has passed."""
        self._call("on_ack_timeout", delivery)

    def on_dead_letter(self, delivery: Delivery, reason: str) -> None:
        """A record was copied to the dead letter topic."""
        self._call("on_dead_letter", delivery, reason)

    def became_active(self, tp: TopicPartition) -> None:
        """The queue has a partition now."""
        self._call("became_active", tp)

    def became_inactive(self, tp: TopicPartition) -> None:
        """The queue has no longer a partition."""
        self._call("became_inactive", tp)

    def _call(self, method: str, *values: object) -> None:
        """Call a method of all that have it; an exception in one is logged."""
        for call in self._methods[method]:
            try:
                call(*values)
            except FAILURES:
                _log.exception("%s of %r raised", method, getattr(call, "__self__", call))
