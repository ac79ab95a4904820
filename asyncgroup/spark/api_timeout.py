"""The time for requests to brokers, retries included: `default.api.timeout.ms` of Kafka's clients, `max.block.ms` of its producer."""

from __future__ import annotations

from typing import Final

__all__ = ["API_TIMEOUT"]

API_TIMEOUT: Final = 60.0
"""The default of both in Java, in seconds."""
