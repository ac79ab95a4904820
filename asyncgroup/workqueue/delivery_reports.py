"""What a dispatcher reports: its own callbacks, and the hooks `on_delivery_start` and `on_delivery_end`, a pair for each delivery."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from asyncgroup.hooks import DeliveryListeners, DeliveryOutcome
from asyncgroup.workqueue.delivery import Delivery
from asyncgroup.workqueue.delivery_state import DeliveryState

__all__ = ["DeliveryReports", "DispatcherCallbacks"]

_OUTCOMES: Final[Mapping[DeliveryState, DeliveryOutcome]] = {
    DeliveryState.NACKED: "nacked",
    DeliveryState.RELEASED: "released",
    DeliveryState.EXPIRED: "expired",
    DeliveryState.LOST: "lost",
}


class DeliveryReports:
    """Calls the listeners for each delivery that has begun; a queue without any has no object of this class."""

    def __init__(self, listeners: DeliveryListeners) -> None:
        self._listeners = listeners
        self._begun: dict[int, BaseException | None] = {}
        """The deliveries that have begun, by id(), and the errors with which they have failed."""

    def __repr__(self) -> str:
        return f"<DeliveryReports: {len(self._begun)} deliveries have begun>"

    def start(self, delivery: Delivery) -> None:
        """A delivery begins."""
        self._begun[id(delivery)] = None
        self._listeners.start(delivery)

    def left(self, delivery: Delivery, error: BaseException | None, *, is_last: bool) -> None:
        """The handler or reader of a delivery has ended it, or has lost it. If its record is copied now (`is_last`: after a nack), it ends with the copy."""
        state = delivery.state
        if state is not DeliveryState.PUBLISHING and not (state is DeliveryState.NACKED and is_last):
            self.end(delivery, _OUTCOMES[state], error)
        elif id(delivery) in self._begun:
            self._begun[id(delivery)] = error

    def end(self, delivery: Delivery, outcome: DeliveryOutcome, error: BaseException | None = None) -> None:
        """A delivery ends; only the first call counts."""
        if id(delivery) in self._begun:
            before = self._begun.pop(id(delivery))
            self._listeners.end(delivery, outcome, error or before)


class DispatcherCallbacks:
    """What a Dispatcher calls, for the queue that it belongs to; the methods here do nothing."""

    checks_acks = False
    """Whether `before_ack` is called."""

    def on_due(self, time: float) -> None:
        """A record is due at loop time `time`, or an ack timeout passes then, before all others."""

    def on_expired(self, delivery: Delivery) -> bool:  # noqa: ARG002
        """The ack timeout of a delivery has passed; return whether its record waits for the end of its handler."""
        return False

    def before_ack(self, delivery: Delivery) -> None:
        """A delivery is about to be acknowledged; if this raises, it is not."""

    def on_nack(self, delivery: Delivery, error: BaseException | None) -> None:
        """A delivery has failed."""
