"""Interceptors of a work queue, as Pulsar's ConsumerInterceptor: called when a delivery begins and ends."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from asyncgroup.errors import ConfigError

if TYPE_CHECKING:
    from asyncgroup.workqueue.delivery import Delivery
    from asyncgroup.workqueue.dispatcher import Dispatcher

__all__ = ["QueueInterceptor", "QueueInterceptors"]

_log = logging.getLogger("asyncgroup.workqueue")


class QueueInterceptor:
    """Base class of interceptors; its methods do nothing. They are plain methods, run on the event loop, and return at once.

    An exception in `before_consume` or `on_acknowledge` fails the delivery, so that its record is delivered again: no record
    is acknowledged although an interceptor has refused that. An exception in the other methods is logged.
    """

    def before_consume(self, delivery: Delivery) -> None:
        """A delivery is about to be handed out."""

    def on_acknowledge(self, delivery: Delivery) -> None:
        """A delivery is about to be acknowledged."""

    def on_negative_ack(self, delivery: Delivery, error: BaseException | None) -> None:
        """A delivery was nacked, or its handler raised `error`."""

    def on_ack_timeout(self, delivery: Delivery) -> None:
        """The ack timeout of a delivery has passed."""

    def on_dead_letter(self, delivery: Delivery, reason: str) -> None:
        """A record was copied to the dead letter topic, and is acknowledged now."""


class QueueInterceptors:
    """Calls interceptors in their order."""

    def __init__(self, interceptors: Iterable[QueueInterceptor] = ()) -> None:
        """Raises ConfigError unless all are QueueInterceptor objects."""
        if not isinstance(interceptors, Iterable):
            raise ConfigError("interceptors", interceptors, "a list of QueueInterceptor objects")
        self._all = tuple(interceptors)
        for each in self._all:
            if not isinstance(each, QueueInterceptor):
                raise ConfigError("interceptors", each, "objects of subclasses of QueueInterceptor")
        self.dispatcher: Dispatcher | None = None
        """The queue's, which delivers a record again that `before_consume` has refused."""

    def __repr__(self) -> str:
        return f"<QueueInterceptors: {len(self._all)}>"

    def before_consume(self, delivery: Delivery) -> bool:
        """Return whether to hand out the delivery; if not, it has failed."""
        if self._all:
            try:
                for each in self._all:
                    each.before_consume(delivery)
            except Exception as error:  # noqa: BLE001  foreign code may raise anything
                _log.exception("before_consume of %r raised: the record is delivered again", delivery)
                assert self.dispatcher is not None
                self.dispatcher.nack(delivery, None, error)
                return False
        return True

    def before_ack(self, delivery: Delivery) -> None:
        """Raises what an interceptor raises; the delivery is not acknowledged then."""
        for each in self._all:
            each.on_acknowledge(delivery)

    def on_nack(self, delivery: Delivery, error: BaseException | None) -> None:
        """A delivery has failed."""
        for each in self._all:
            try:
                each.on_negative_ack(delivery, error)
            except Exception:  # noqa: BLE001  foreign code may raise anything
                _log.exception("on_negative_ack of %r raised", delivery)

    def on_ack_timeout(self, delivery: Delivery) -> None:
        """The ack timeout of a delivery has passed."""
        for each in self._all:
            try:
                each.on_ack_timeout(delivery)
            except Exception:  # noqa: BLE001  foreign code may raise anything
                _log.exception("on_ack_timeout of %r raised", delivery)

    def on_dead_letter(self, delivery: Delivery, reason: str) -> None:
        """A record was copied to the dead letter topic."""
        for each in self._all:
            try:
                each.on_dead_letter(delivery, reason)
            except Exception:  # noqa: BLE001  foreign code may raise anything
                _log.exception("on_dead_letter of %r raised", delivery)
