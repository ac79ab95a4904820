"""The interface of a running Kafka that tests on a real Kafka use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["ExternalKafka", "RunningKafka"]


class RunningKafka(Protocol):
    """A running Kafka. Tests that share it use topics and groups with unique names, and change nothing else."""

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of its nodes, comma-separated."""


@dataclass(frozen=True)
class ExternalKafka:
    """The Kafka that `ASYNCGROUP_KAFKA` names; the tests do not start or stop it."""

    bootstrap_servers: str
