"""The table of regular expressions (`broker/handlers/re2_table.py`) on Apache Kafka and on the embedded broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from asyncgroup.broker import EmbeddedCluster
from asyncgroup.error_codes import ErrorCode
from asyncgroup.testing.apache_kafka import ApacheKafka
from asyncgroup.wire import messages as m
from tests.broker.client import Client
from tests.broker.handlers.re2_table import MATCHED, NAMES, REFUSED
from tests.interop.java_tools import JavaTools
from tests.interop.parity.scene import NOT_YET

LIMIT = 60.0

pytestmark = [pytest.mark.java, pytest.mark.full]


@contextlib.asynccontextmanager
async def connected(server: str) -> AsyncIterator[Client]:
    host, _, port = server.rpartition(":")
    client = Client(*await asyncio.open_connection(host, int(port)), "patterns")
    try:
        yield client
    finally:
        await client.close()


async def settled(client: Client, request: Any, version: int) -> Any:
    """Send a request until the coordinator is ready; return the response."""
    async with asyncio.timeout(LIMIT):
        while (response := await client.ask(request, version)).error_code in NOT_YET:
            await asyncio.sleep(0.05)
    return response


async def start_transactions(client: Client, names: frozenset[str]) -> None:
    """Let the broker know these transactional ids."""
    for name in names:
        await settled(client, m.FindCoordinatorRequest(name, 1), 3)
        response = await settled(client, m.InitProducerIdRequest(name, 60_000), 4)
        assert response.error_code == 0, name


async def matched(client: Client, pattern: str) -> frozenset[str] | int:
    """Return the transactional ids that match a pattern, or the error's code."""
    response = await client.ask(m.ListTransactionsRequest([], [], -1, pattern), 2)
    if response.error_code:
        return ErrorCode(response.error_code)
    return frozenset(state.transactional_id for state in response.transaction_states)


async def subscribed(client: Client, pattern: str) -> tuple[int, str | None]:
    """Return the error's code and text for a member that subscribes by a pattern."""
    request = m.ConsumerGroupHeartbeatRequest(
        "patterns", "member", 0, rebalance_timeout_ms=30_000, subscribed_topic_regex=pattern
    )
    request.topic_partitions = []
    response = await settled(client, request, 1)
    return response.error_code, response.error_message


async def results(server: str, names: frozenset[str]) -> dict[str, Any]:
    async with connected(server) as client:
        await start_transactions(client, names)
        found: dict[str, Any] = {
            f"listed by {pattern}": await matched(client, pattern)
            for pattern in [*MATCHED, *REFUSED]
            if pattern
        }
        await settled(client, m.FindCoordinatorRequest("patterns", 0), 3)
        return found | {f"subscribed by {pattern}": await subscribed(client, pattern) for pattern in REFUSED}


async def test_both_brokers_match_and_refuse_the_same(kafka_at_hand: None) -> None:
    names = NAMES - {""}  # no producer has this id, and this pattern is none
    with ApacheKafka() as kafka:
        theirs = await results(kafka.bootstrap_servers, names)
    async with EmbeddedCluster() as cluster:
        ours = await results(cluster.bootstrap_servers, names)
    assert theirs == ours
    for pattern, expected in MATCHED.items():
        if pattern:
            assert theirs[f"listed by {pattern}"] == expected - {""}, pattern
    for pattern, error in REFUSED.items():
        code = ErrorCode.INVALID_REGULAR_EXPRESSION
        text = f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {error}."
        assert theirs[f"listed by {pattern}"] == code, pattern
        assert theirs[f"subscribed by {pattern}"] == (code, text)


async def test_javas_consumer_subscribes_by_a_pattern(java_tools: JavaTools) -> None:
    topics = ("my-orders", "orders", "orders-eu", "x1", "xa")
    async with EmbeddedCluster(
        topics=dict.fromkeys(topics, 1), group_consumer_heartbeat_interval=0.2
    ) as cluster:
        for topic in topics:
            cluster.produce(topic, topic.encode())
        program = Path(__file__).with_name("Subscribe.java")
        pattern = r"(^orders.*)|(?i:X)[[:alpha:]]+\b"
        output = await java_tools(program, cluster.bootstrap_servers, "javas", pattern, "3")
        assert (output.code, output.lines) == (0, ["orders", "orders-eu", "xa"]), output.text
        refused = await java_tools(program, cluster.bootstrap_servers, "others", "orders(", "1")
        assert refused.code != 0
        error = "SubscribedTopicRegex `orders(` is not a valid regular expression: missing closing )."
        assert error in refused.text
