"""A producer whose broker is stopped while it writes: how much memory it takes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from asyncgroup.testing.apache_kafka import ApacheKafka
from benchmarks.common import ClientFailed, started_process

__all__ = ["Broker", "StoppableKafka", "fill"]


class Broker:
    """The broker that clients write to; this one cannot be stopped."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers

    def stop(self) -> None:
        """Suspend its process, if possible."""

    def resume(self) -> None:
        """Let its process continue."""


class StoppableKafka(Broker):
    """An Apache Kafka of one node that this process has started; SIGSTOP and SIGCONT go to its process id."""

    def __init__(self, kafka: ApacheKafka) -> None:
        super().__init__(kafka.bootstrap_servers)
        self._kafka = kafka

    def stop(self) -> None:
        self._kafka.suspend(1)

    def resume(self) -> None:
        self._kafka.resume(1)


async def fill(name: str, command: Sequence[str], broker: Broker, limit: float) -> dict[str, Any]:
    """Run a producer in the mode "stopped", stop the broker when it is connected, and return its figures.

    Raises ClientFailed if the producer fails, or takes longer than `limit` seconds.
    """
    async with started_process(*command) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            async with asyncio.timeout(limit):
                if (await process.stdout.readline()).strip() == b"ready":
                    broker.stop()
                    process.stdin.write(b"\n")
                    figures = await process.stdout.readline()
                    await process.wait()
                    if figures:
                        found: dict[str, Any] = json.loads(figures)
                        return found
                errors = await process.stderr.read()
        except TimeoutError:
            raise ClientFailed(f"{name} took longer than {limit:g} s") from None
        finally:
            broker.resume()
        raise ClientFailed(f"{name} failed:\n{errors.decode()}")
