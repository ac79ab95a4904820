"""Log events: the main lines of the log have stable names and fields, and no payloads."""

from __future__ import annotations

import ast
import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import asyncgroup
from asyncgroup import (
    Claim,
    ConsumerConfig,
    ConsumerGroup,
    Delivery,
    Producer,
    ProducerConfig,
    Session,
    WorkQueue,
)
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import BrokerError, CommitFailedError, ProducerFencedError, TransactionAbortedError
from asyncgroup.group.liveness.stalls import EVENTS_BY_KIND, LoopWatch
from asyncgroup.log_events import FIELDS, LOG_EVENTS, commit_failed_fields, log_fields
from asyncgroup.model import TopicPartition
from tests.stories.holding import mark_all

EARLIEST = ConsumerConfig(auto_offset_reset="earliest")


def named_events() -> set[str]:
    """Return the events that the package logs."""
    found = {"commit_failed", "assigned", "revoked"}  # by `commit_failed_fields` and `_log_partitions`
    found |= set(EVENTS_BY_KIND.values())
    for path in Path(asyncgroup.__file__ or "").parent.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if "log_fields(" in source else ():
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "log_fields"
            ):
                event = node.args[0]
                found |= {str(event.value)} if isinstance(event, ast.Constant) else set()
    return found


def test_the_table_has_the_events_that_are_logged() -> None:
    assert named_events() == set(LOG_EVENTS)


def test_fields_do_not_hide_attributes_of_a_log_record() -> None:
    fields = log_fields(
        "lost",
        group="g",
        tp=TopicPartition("orders", 1),
        offset=0,
        generation=3,
        partitions=[TopicPartition("a", 0)],
        transactional_id="tx",
        error=ValueError("x"),
    )
    assert set(fields) == set(FIELDS)
    assert not set(FIELDS) & set(vars(logging.makeLogRecord({})))
    assert log_fields("joined") == {"event": "joined"}


def test_errors_are_named_as_kafka_names_them() -> None:
    errors = {TopicPartition("b", 1): BrokerError(30, "x"), TopicPartition("a", 0): BrokerError(29, "y")}
    assert commit_failed_fields(CommitFailedError("g", errors)) == {
        "event": "commit_failed",
        "group": "g",
        "partitions": ["a-0", "b-1"],
        "error": "GROUP_AUTHORIZATION_FAILED",
    }
    assert log_fields("lost", error=ValueError("x"))["error"] == "ValueError"


# --- stories ------------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(nodes=1, seed=1) as cluster:
        cluster.create_topic("orders", 2)
        cluster.produce("orders", b"a secret", partition=0)
        yield cluster


def events(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return the fields of the lines that have an event."""
    assert "secret" not in caplog.text
    lines = [vars(record) for record in caplog.records if hasattr(record, "event")]
    return [{name: line[name] for name in FIELDS if name in line} for line in lines]


async def consume(
    broker: EmbeddedCluster, config: ConsumerConfig, seconds: float, handler: Any = mark_all
) -> None:
    async with ConsumerGroup(broker.bootstrap_servers, "g", config) as group:
        running = asyncio.create_task(group.run("orders", handler))
        await asyncio.sleep(seconds)
        await group.aclose()
        await asyncio.wait([running])
        running.exception()


@pytest.mark.virtual
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_member_joins_gets_partitions_and_gives_them_back(
    broker: EmbeddedCluster, caplog: pytest.LogCaptureFixture, protocol: Any
) -> None:
    caplog.set_level(logging.INFO, "asyncgroup")
    await consume(broker, ConsumerConfig(auto_offset_reset="earliest", group_protocol=protocol), 20)
    joined, assigned, revoked = events(caplog)
    generation = joined.pop("generation")
    assert joined == {"event": "joined", "group": "g"}
    assert generation >= 1
    partitions = ["orders-0", "orders-1"]
    for found, event in ((assigned, "assigned"), (revoked, "revoked")):
        assert found.pop("generation") >= generation
        assert found == {"event": event, "group": "g", "partitions": partitions}
    assert "group g: assigned orders-0, orders-1" in caplog.text


@pytest.mark.virtual
async def test_a_lost_membership_is_no_revocation(
    broker: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "asyncgroup")
    broker.faults.on("Heartbeat", nth=2).error("UNKNOWN_MEMBER_ID")
    await consume(broker, EARLIEST, 20)
    found = events(caplog)
    assert [each["event"] for each in found] == [
        *("joined", "assigned", "lost"),
        *("joined", "assigned", "revoked"),
    ]
    assert found[2] == {"event": "lost", "group": "g", "generation": 1, "error": "UNKNOWN_MEMBER_ID"}


@pytest.mark.virtual
async def test_commits_that_fail_and_offsets_that_are_reset(
    broker: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def seek(session: Session, claim: Claim) -> None:
        if claim.partition == 0:
            claim.seek(500)
        await mark_all(session, claim)

    broker.faults.on("OffsetCommit").error("GROUP_AUTHORIZATION_FAILED")
    await consume(broker, EARLIEST, 20, seek)
    found = events(caplog)
    (reset,) = (each for each in found if each["event"] == "offset_reset")
    assert (reset["topic"], reset["partition"], reset["offset"]) == ("orders", 0, 0)
    assert reset["error"] == "asyncgroup.errors.OffsetOutOfRangeError"
    failed = next(each for each in found if each["event"] == "commit_failed")
    assert failed["error"] == "GROUP_AUTHORIZATION_FAILED"
    assert failed["partitions"] == ["orders-0"]


@pytest.mark.virtual
@pytest.mark.parametrize("thread", [True, False])
async def test_a_claim_that_is_stuck(
    broker: EmbeddedCluster, caplog: pytest.LogCaptureFixture, thread: bool
) -> None:
    async def hold(session: Session, claim: Claim) -> None:
        async for _ in claim:
            await asyncio.sleep(3600)

    config = replace(EARLIEST, max_poll_interval=60.0, heartbeat_thread=thread)
    await consume(broker, config, 80, hold)
    (stuck,) = [each for each in events(caplog) if each["event"] == "claim_stuck"]
    assert stuck == {
        "event": "claim_stuck",
        "group": "g",
        "topic": "orders",
        "partition": 0,
        "error": "asyncgroup.errors.ClaimStuck",
    }


@pytest.mark.virtual
async def test_members_that_wait_for_the_coordinator(
    broker: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    broker.faults.on("FindCoordinator", times=None).drop()
    await consume(broker, EARLIEST, 9)
    assert events(caplog) == [{"event": "coordinator_silent", "group": "g"}]
    caplog.clear()
    broker.faults.clear()
    broker.faults.on("JoinGroup", times=None).error("COORDINATOR_LOAD_IN_PROGRESS")
    await consume(broker, EARLIEST, 15)
    assert events(caplog)[0] == {"event": "join_stalled", "group": "g"}


async def test_an_event_loop_that_was_blocked(caplog: pytest.LogCaptureFixture) -> None:
    """Without a heartbeat thread; with one, tests/group/liveness/test_heartbeat_thread.py."""
    loop = asyncio.get_running_loop()
    found: list[float] = []
    watch = LoopWatch("g", found.append)
    watch.start()
    time_before = loop.time
    loop.time = lambda: time_before() + 5.0  # type: ignore[method-assign]  # as after a block of 5 s
    try:
        watch.tick()
    finally:
        loop.time = time_before  # type: ignore[method-assign]
        watch.stop()
    assert found == [pytest.approx(4.0, abs=0.1)]
    assert events(caplog) == [{"event": "loop_blocked", "group": "g"}]


@pytest.mark.virtual
async def test_a_transaction_that_fails_and_a_producer_that_is_fenced(
    broker: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "asyncgroup.producer")
    config = ProducerConfig(transactional_id="tx")
    async with Producer(broker.bootstrap_servers, config) as producer:
        broker.faults.on("Produce").error("TOPIC_AUTHORIZATION_FAILED")
        with pytest.raises(TransactionAbortedError):
            async with producer.transaction():
                await producer.enqueue("orders", b"secret", partition=0)
        failed = {
            "event": "transaction_failed",
            "transactional_id": "tx",
            "error": "TOPIC_AUTHORIZATION_FAILED",
        }
        assert events(caplog) == [failed]
        caplog.clear()
        async with Producer(broker.bootstrap_servers, config):
            with pytest.raises(ProducerFencedError):
                async with producer.transaction():
                    await producer.send("orders", b"secret", partition=0)
    fenced = "asyncgroup.errors.ProducerFencedError"
    assert events(caplog) == [{"event": "producer_failed", "transactional_id": "tx", "error": fenced}]
    assert {record.levelname for record in caplog.records} == {"INFO"}, "the callers get the errors"


@pytest.mark.full
@pytest.mark.virtual
async def test_handlers_that_raise_and_dead_letters(
    broker: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "asyncgroup.workqueue")

    async def fail(*_: object) -> None:
        raise ValueError("a bug")

    await consume(broker, EARLIEST, 20, fail)
    assert events(caplog)[0] == {"event": "handler_failed", "group": "g", "error": "ValueError"}
    caplog.clear()

    async def handle(delivery: Delivery) -> None:
        raise ValueError("a bug")

    async with WorkQueue(broker.bootstrap_servers, "q", "orders", config=EARLIEST, dead_letter=1) as queue:
        broker.faults.on("Produce", nth=1).error("TOPIC_AUTHORIZATION_FAILED")
        running = asyncio.create_task(queue.run(handle))
        await asyncio.sleep(300)
        await queue.aclose()
        await running
    where = {"topic": "orders", "partition": 0, "offset": 0}
    found = events(caplog)
    assert found[0] == {"event": "delivery_failed", **where, "error": "ValueError"}
    assert {"event": "copy_failed", **where, "error": "TOPIC_AUTHORIZATION_FAILED"} in found
    assert found[-1] == {"event": "dead_letter", "group": "q", **where}
