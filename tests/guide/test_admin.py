"""The programs of the page "Admin", on an embedded broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from asyncgroup.admin import Admin
from asyncgroup.testing import KafkaServer
from tests.guide.pages import snippet
from tests.guide.test_execution import define


@pytest.fixture
def server() -> Iterator[KafkaServer]:
    """A broker with three records of `orders`, of which the group "billing" has committed one."""
    with KafkaServer(topics={"orders": 1}) as kafka:
        kafka.produce("orders", b"0", b"1", b"2", partition=0)
        kafka.commit("billing", {("orders", 0): 1})
        yield kafka


def test_topics() -> None:
    printed: list[tuple[object, ...]] = []
    code = snippet("admin", "admin.create_topics").replace(
        "print(name, error)", "print(name, error.code.name)"
    )
    with KafkaServer() as server:
        define(code, server, main=True, print=lambda *values: printed.append(values))
    assert printed == [("orders", 3), ("refunds", "UNKNOWN_TOPIC_OR_PARTITION")]


def test_lag_and_reset(server: KafkaServer) -> None:
    printed: list[tuple[object, ...]] = []

    async def run() -> None:
        async with Admin(server.bootstrap_servers) as admin:
            for text, name in (("admin.lag", "lag"), ("admin.plan_reset", "reset"), ("admin.lag", "lag")):
                names = define(
                    snippet("admin", text),
                    server,
                    Admin=Admin,
                    print=lambda *values, **_: printed.append(values),
                )
                await names[name](admin)

    asyncio.run(run())
    assert [each[0] if isinstance(each[0], int) else each[1:] for each in printed if each] == [
        2, (1, 3, 2, None), (1, 0), 3, (0, 3, 3, None),
    ]  # fmt: skip
