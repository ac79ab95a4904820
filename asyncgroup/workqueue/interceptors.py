"""Interceptors of a work queue, as Pulsar's ConsumerInterceptor: called when a delivery begins and ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from asyncgroup.errors import ConfigError
from asyncgroup.lifecycle import describe_error
from asyncgroup.model import Record, TopicPartition
from asyncgroup.workqueue.delivery import FAILURES, DeliveryState

if TYPE_CHECKING:
    from asyncgroup.workqueue.delivery import Delivery

__all__ = ["QueueInterceptor", "QueueInterceptors"]

_log = logging.getLogger("asyncgroup.workqueue")


class QueueInterceptor:
    """Base class of interceptors; its methods do nothing. They are plain methods, run on the event loop, and return at once.

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


class QueueInterceptors:
    """Calls interceptors in their order."""

    def __init__(
        self,
        interceptors: Iterable[object] = (),
        decode: Callable[[Record], object] | None = None,
    ) -> None:
        """`decode` makes `Delivery.decoded`. Raises ConfigError unless all are QueueInterceptor objects."""
        self._decode = decode
        if not isinstance(interceptors, Iterable):
            raise ConfigError("interceptors", interceptors, "a list of QueueInterceptor objects")
        self._all: tuple[Any, ...] = tuple(interceptors)
        for each in self._all:
            if not isinstance(each, QueueInterceptor):
                raise ConfigError("interceptors", each, "objects of subclasses of QueueInterceptor")

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
            if delivery.state is DeliveryState.IN_HAND:
                delivery._dispatcher.release(delivery)
            raise

    def _is_accepted(self, delivery: Delivery) -> bool:
        if self._decode is not None:
            try:
                delivery.decoded = self._decode(delivery.record)
            except FAILURES as error:
                _log.warning("%r cannot be decoded: %s", delivery, describe_error(error))
                delivery._dispatcher.discard(delivery, f"cannot be decoded: {describe_error(error)}", error)
                return False
        try:
            for each in self._all:
                each.before_consume(delivery)
        except FAILURES as error:
            _log.exception("before_consume of %r raised: the record is delivered again", delivery)
            delivery._dispatcher.nack(delivery, None, error)
            return False
        return True

    def before_ack(self, delivery: Delivery) -> None:
        """Raises what an interceptor raises; the delivery is not acknowledged then."""
        for each in self._all:
            each.on_acknowledge(delivery)

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
        """Call a method of all; an exception in one is logged."""
        for each in self._all:
            try:
                getattr(each, method)(*values)
            except FAILURES:
                _log.exception("%s of %r raised", method, each)
