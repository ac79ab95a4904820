"""A real Pulsar that requires tokens, with a TLS port."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from asyncgroup.pulsar.authentication import TokenAuthentication
from asyncgroup.pulsar.client import PulsarClient
from asyncgroup.pulsar.config import PulsarConfig
from asyncgroup.security import Tls
from asyncgroup.testing.apache_pulsar import ApachePulsar
from tests.real.certificates import Authority

__all__ = ["Secured", "secured_pulsar"]

REFRESH = 1
"""Seconds between two checks of the broker for tokens that have expired."""


class Secured(NamedTuple):
    """A Pulsar that requires tokens, with a TLS port."""

    pulsar: ApachePulsar
    authority: Authority

    @property
    def tls(self) -> Tls:
        return Tls(ca_file=self.authority.ca_file)

    def token(self, lifetime: float | None = None) -> TokenAuthentication:
        """Return a token of the superuser."""
        return TokenAuthentication(self.pulsar.token("admin", lifetime))

    async def partitions(self, url: str, topic: str = "orders", **config: Any) -> int:
        """Ask for the partitions of a topic, with little patience."""
        made = PulsarConfig(**{"connect_timeout": 10.0, "operation_timeout": 5.0, **config})
        async with PulsarClient(url, made) as client:
            return await client.partitions(topic)


@contextmanager
def secured_pulsar(directory: Path) -> Iterator[Secured]:
    """Yield a Pulsar with the topic `orders` of 3 partitions; certificates are in `directory`."""
    authority = Authority(directory)
    with ApachePulsar(
        token_authentication=True,
        certificate=authority.sign("broker", "IP:127.0.0.1"),
        properties={"authenticationRefreshCheckSeconds": REFRESH},
    ) as pulsar:
        asyncio.run(pulsar.admin.create_partitioned_topic("orders", 3))
        yield Secured(pulsar, authority)
