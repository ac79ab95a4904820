"""PulsarConsumerListener: callbacks of the consumer of one partition."""

from __future__ import annotations

__all__ = ["PulsarConsumerListener"]


class PulsarConsumerListener:
    """Base of listeners, whose methods do nothing. The event loop calls them: they must not wait, and only `check_broker` may raise."""

    def check_broker(self, server_version: str) -> None:
        """Raise ConfigError for a broker that cannot be used, which ends the consumer; before it registers there."""

    def on_messages(self) -> None:
        """Messages were queued: `take` returns them."""

    def on_attached(self) -> None:
        """The consumer is registered at a broker, at first or again."""

    # messages that were taken before and are not acknowledged come again, here or to another consumer
    def on_restart(self) -> None:
        """The queue was emptied: the connection ended, everything is delivered again, or the subscription was moved."""

    def on_active_change(self, is_active: bool) -> None:
        """The consumer of a Failover subscription is the active one of its partition, or no longer."""

    def on_end_of_topic(self) -> None:
        """The topic was terminated, and all of its messages were pushed."""

    def on_error(self, error: Exception) -> None:
        """Something failed that is tried again, or an entry cannot be read."""

    def on_failed(self, error: Exception) -> None:
        """The consumer has ended: the broker does not accept it."""
