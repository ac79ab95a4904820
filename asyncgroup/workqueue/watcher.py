"""Watcher: the callbacks of a Dispatcher."""

from __future__ import annotations

from asyncgroup.workqueue.delivery import Delivery

__all__ = ["Watcher"]


class Watcher:
    """The callbacks of a Dispatcher; the methods here do nothing."""

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
