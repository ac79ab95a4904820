"""A retry topic that does not exist stops nothing: the sources are read, and the topic once it exists.

`working(env, "ann", work)` runs the handler `work` with the work queue of the member `ann`. Its `calls` are `begin 0@5#1`, for the
first delivery (`#1`) of the record at offset 5 of partition 0, and then `end 0@5#1`, `error 0@5#1` or `cancelled 0@5#1`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import pytest

from asyncgroup import BrokerError, ErrorCode, ProducerConfig, SubscriptionPattern
from asyncgroup.workqueue import DeadLetter, Delivery, RetryTopic
from asyncgroup.workqueue.group_engine.copy_topic_creation import INTERVAL
from tests.scenario.support import now
from tests.scenario.three_protocols import in_each_protocol
from tests.stories.queue_members import acked, opened, send, working
from tests.stories.virtual import VirtualEnvironment

RETRY = "orders-g-RETRY"
OPTIONS: dict[str, Any] = {
    "retry": RetryTopic(partitions=1),
    "dead_letter": DeadLetter(3, partitions=1),
    "producer_config": ProducerConfig(delivery_timeout=5.0, request_timeout=2.0),
}


async def later(delivery: Delivery) -> None:
    """Retry the records that say so once, and reject others."""
    if delivery.attempt == 1 and delivery.value == b"later":
        await delivery.reconsume_later(1.0)
    elif delivery.value == b"bad":
        await delivery.reject("bad")


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log lines of the queue that say what is missing, and that it is there."""
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("asyncgroup.")]
    found = [line for line in lines if line.startswith(f"group g: topic {RETRY!r}")]
    return [line.removeprefix(f"group g: topic {RETRY!r} ").split(":")[0] for line in found]


IS_MISSING = "does not exist; it is read from its start once it exists"


@in_each_protocol
async def test_the_sources_are_read_while_it_is_missing(
    env: VirtualEnvironment, caplog: pytest.LogCaptureFixture
):
    """A record that is to be copied to it waits unacknowledged, by itself; health and a log line name the topic."""
    caplog.set_level(logging.INFO, "asyncgroup")
    env.cluster.create_topic("orders-g-DLQ", 1)
    env.cluster.faults.on("CreateTopics", times=None).error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    await send(env, b"later", b"1", b"bad")
    async with working(env, "ann", later, **OPTIONS) as ann:
        await ann.until("end 0@1#1", "end 0@2#1")
        await asyncio.sleep(20.0)  # the copy has failed by then
        (missing, failing) = ann.queue.health().problems
        assert missing.startswith(f"topic {RETRY!r} does not exist, missing for ")
        assert failing.startswith(f"copies to topic {RETRY!r} fail: ")
        assert await acked(env) == [1, 2]
        await send(env, b"3")
        await ann.until("end 0@3#1")

        env.cluster.create_topic(RETRY, 1)
        await ann.until("end 0@0#1", "end 0@0#2")
        assert ann.deliveries["0@0#2"].record.topic == RETRY
        await asyncio.sleep(10.0)
        assert ann.queue.health().problems == ()
        assert len(ann.of("begin")) == 5
    assert await acked(env) == [0, 1, 2, 3]
    assert await acked(env, topic=RETRY) == [0]
    assert messages(caplog) == ["could not be created", IS_MISSING, "exists now"]


@pytest.mark.full
@pytest.mark.parametrize("is_transactional", [False, True])
async def test_the_queue_closes_while_it_is_missing(env: VirtualEnvironment, is_transactional: bool):
    """A record whose copy could not be written is delivered again."""
    env.cluster.create_topic("orders-g-DLQ", 1)
    env.cluster.faults.on("CreateTopics", times=None).error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    await send(env, b"later", b"1", b"bad")
    config = {"isolation_level": "read_committed"}
    options = {**OPTIONS, "transactional_copies": is_transactional, "config": config}
    async with working(env, "ann", later, **options) as ann:
        await ann.until("end 0@1#1", "end 0@2#1")
    assert ann.of("end") == ["0@1#1", "0@2#1"]
    assert await acked(env) == [1, 2]
    env.cluster.create_topic(RETRY, 1)
    async with working(env, "bob", later, **options) as bob:
        await bob.until_count("end", 2)
        assert sorted(bob.of("end")) == ["0@0#1", "0@0#2"]
    assert await acked(env) == [0, 1, 2]


@pytest.mark.full
@pytest.mark.parametrize(
    "env", ["eager", pytest.param("consumer", id="pattern of the broker")], indirect=True
)
async def test_the_sources_are_a_pattern(env: VirtualEnvironment, caplog: pytest.LogCaptureFixture):
    """The topic is found long before the pattern is matched again."""
    caplog.set_level(logging.INFO, "asyncgroup")
    env.cluster.faults.on("CreateTopics", times=None).error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    await send(env, b"later", b"1")
    topics = {"retry": RetryTopic(RETRY, partitions=1), "dead_letter": DeadLetter(3, topic="dead")}
    options = {**OPTIONS, **topics}
    by_broker = env.protocol.get("group_protocol") == "consumer"
    options["topics"] = SubscriptionPattern("orders") if by_broker else re.compile("orders$")
    options["config"] = {"metadata_refresh_interval": 3600.0}
    async with working(env, "ann", later, **options) as ann:
        await ann.until("end 0@1#1")
        assert any(f"topic {RETRY!r} does not exist" in text for text in ann.queue.health().problems)
        assert any("topic 'dead' could not be created" in text for text in ann.queue.health().problems)
        env.cluster.create_topic(RETRY, 1)
        env.cluster.create_topic("dead", 1)
        began = now()
        await ann.until("end 0@0#1", "end 0@0#2")
        assert now() - began < 60.0
        await env.bell.until(lambda: ann.queue.health().is_healthy, "well again", env.limit)
    assert messages(caplog) == ["could not be created", IS_MISSING, "exists now"]


@pytest.mark.full
async def test_a_topic_that_may_not_be_described(env: VirtualEnvironment, caplog: pytest.LogCaptureFixture):
    """Brokers do not say then whether it exists. When it may be, it is read."""
    caplog.set_level(logging.INFO, "asyncgroup")

    def deny(response: Any) -> Any:
        for topic in response.topics:
            if topic.name == RETRY:
                topic.error_code, topic.partitions = ErrorCode.TOPIC_AUTHORIZATION_FAILED, []
        return response

    denied = env.cluster.faults.on("Metadata", times=None).mutate(deny)
    refused = env.cluster.faults.on("CreateTopics", times=None).error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    await send(env, b"later", b"1")
    async with working(env, "ann", later, **{**OPTIONS, "dead_letter": None}) as ann:
        await ann.until("end 0@1#1")
        joins = len(env.cluster.history.of("JoinGroup"))
        await asyncio.sleep(60.0)
        assert len(env.cluster.history.of("JoinGroup")) == joins
        assert any(f"topic {RETRY!r} cannot be used for " in text for text in ann.queue.health().problems)
        env.cluster.create_topic(RETRY, 1)
        denied.cancel()
        refused.cancel()
        await ann.until("end 0@0#1", "end 0@0#2")
    is_denied = "has the error TOPIC_AUTHORIZATION_FAILED; it is read once that has ended"
    assert messages(caplog) == ["could not be created", is_denied, "can be read now"]


@pytest.mark.full
async def test_the_controller_is_away_for_long(env: VirtualEnvironment, caplog: pytest.LogCaptureFixture):
    """The topics are created while the queue runs, at a bounded rate."""
    caplog.set_level(logging.INFO, "asyncgroup")
    fault = env.cluster.faults.on("CreateTopics", times=None).error(ErrorCode.NOT_CONTROLLER)
    await send(env, b"later", b"bad")
    async with working(env, "ann", later, **OPTIONS) as ann:
        before = len(env.cluster.history.of("CreateTopics"))
        await asyncio.sleep(10 * INTERVAL)
        assert 9 <= len(env.cluster.history.of("CreateTopics")) - before <= 10
        fault.cancel()
        await ann.until("end 0@0#1", "end 0@0#2", "end 0@1#1")
        await env.bell.until(lambda: ann.queue.health().is_healthy, "well again", env.limit)
        count = len(env.cluster.history.of("CreateTopics"))
        await asyncio.sleep(10 * INTERVAL)
        assert len(env.cluster.history.of("CreateTopics")) == count
    assert messages(caplog) == ["could not be created", IS_MISSING, "exists now"]


@pytest.mark.parametrize("is_transactional", [False, pytest.param(True, marks=pytest.mark.full)])
async def test_lookups_create_no_topic_of_copies(is_transactional: bool):
    """Where brokers create topics that are looked up: it would have their partitions, and a retention time for its copies."""
    options = {"auto_create_topics": True, "default_partitions": 1}
    async with VirtualEnvironment.made(**options) as env:
        away = env.cluster.faults.on("CreateTopics", times=None).error(ErrorCode.NOT_CONTROLLER)
        await send(env, b"later", b"bad")
        config = {"isolation_level": "read_committed"} if is_transactional else {}
        topics = {
            "retry": RetryTopic(),
            "dead_letter": DeadLetter(3),
            "transactional_copies": is_transactional,
        }
        async with working(env, "ann", later, **{**OPTIONS, **topics, "config": config}) as ann:
            await asyncio.sleep(100.0)
            assert not {RETRY, "orders-g-DLQ"}.intersection(env.cluster.topics)
            away.cancel()
            await ann.until_count("end", 3)  # the copy is in any partition
        for name in (RETRY, "orders-g-DLQ"):
            topic = env.cluster.topic(name)
            assert (len(topic.partitions), topic.configs["retention.ms"]) == (4, "-1")


@pytest.mark.full
async def test_the_own_topics_have_to_exist(env: VirtualEnvironment):
    """The rule for the topics of the user is what it was: one that was never there may be a typo."""
    env.cluster.faults.on("CreateTopics", times=None).error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    async with opened(env, topics=["orders", "oders"], **OPTIONS) as queue:
        with pytest.raises(BrokerError, match="'oders'"):
            await queue.receive()
