"""What the tests on a real Kafka know of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["ExternalKafka", "RunningKafka"]


class RunningKafka(Protocol):
    """A Kafka that runs; tests that share it leave no trace but topics and groups with names of their own."""

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of its nodes, with commas."""


@dataclass(frozen=True)
class ExternalKafka:
    """The Kafka that `ASYNCGROUP_KAFKA` names; nothing of it is started or stopped here."""

    bootstrap_servers: str
