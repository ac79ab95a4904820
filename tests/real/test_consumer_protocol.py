"""Members by KIP-848 on a real Kafka: what they keep is consumed without a gap while others join and leave.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
import pytest_asyncio

from asyncgroup import (
    BrokerError,
    ConsumerConfig,
    ConsumerGroup,
    ErrorCode,
    SubscriptionPattern,
    TopicPartition,
)
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.errors import UnsupportedVersionError
from asyncgroup.group.assignors import Assignment
from asyncgroup.testing.apache_kafka import ApacheKafka
from asyncgroup.wire import messages as m
from tests.group.internals import membership_of
from tests.profiles import thinned
from tests.real.concurrent_stories import ConcurrentStories, selected
from tests.real.support import NEEDS_KAFKA_4, RunningKafka
from tests.scenario.support import Gate, WorkHandler, now, running
from tests.stories.real import RealEnvironment
from tests.stories.traffic import PARTITIONS, Handled, Reader, partitions_of, topics_of, traffic

pytestmark = pytest.mark.asyncio(loop_scope="module")

AT_ONCE = 6
"""Stories that run at the same time: they mostly wait, for the heartbeat interval of 5 seconds."""


class ConsumerProtocolEnvironment(RealEnvironment):
    """Without the settings that a group of this protocol has at the brokers."""

    def config(self, name: str, **config: Any) -> dict[str, Any]:
        given = super().config(name, **config)
        if config.get("group_protocol", "consumer") == "consumer":
            for key in ("session_timeout", "heartbeat_interval", "assignors"):
                if key not in config:
                    given.pop(key, None)
        return {"group_protocol": "consumer", **given}


def new_group(env: RealEnvironment, name: str = "ann", **config: Any) -> ConsumerGroup:
    full = ConsumerConfig(**env.config(name, **config))
    return ConsumerGroup(env.bootstrap_servers, env.group_id, full, hooks=[env.bell])


async def members_join_and_leave(env: RealEnvironment) -> None:
    topic = await env.create_topic("six", PARTITIONS)
    handled: Handled = {number: [] for number in range(PARTITIONS)}
    readers = {name: Reader(env, name, handled) for name in ("ann", "bob", "cid")}
    ann, bob, cid = (new_group(env, name) for name in readers)

    def sizes(*groups: ConsumerGroup) -> list[int]:
        return [len(partitions_of(group)) for group in groups]

    problems: list[Exception] = []

    async def collect() -> None:
        async for error in ann.errors():
            problems.append(error)  # noqa: PERF401  it is read before the end

    async with ann, bob, cid, traffic(env, topic), running(collect()), contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(running(ann.run(topic, readers["ann"])))
        await env.bell.until(lambda: all(handled.values()), "records of all partitions", env.limit)
        session = ann.session
        assert session is not None
        epoch = session.generation_id
        await stack.enter_async_context(running(bob.run(topic, readers["bob"])))
        await env.bell.until(lambda: sizes(ann, bob) == [3, 3], "halves", env.limit)
        await stack.enter_async_context(running(cid.run(topic, readers["cid"])))
        await env.bell.until(lambda: sizes(ann, bob, cid) == [2, 2, 2], "thirds", env.limit)
        kept = partitions_of(ann)
        assert ann.session is session, "the session goes on"
        assert session.generation_id > epoch
        await asyncio.sleep(1)
        await cid.aclose()
        await env.bell.until(lambda: sizes(ann, bob) == [3, 3], "halves again", env.limit)
        await bob.aclose()
        await env.bell.until(lambda: sizes(ann) == [PARTITIONS], "all again", env.limit)
        await asyncio.sleep(1)
        assert ann.session is session
        assert set(kept) <= set(partitions_of(ann))
        await ann.aclose()
    for number, records in handled.items():
        assert [offset for _, _, offset in records] == list(range(len(records))), "each once and in order"
        gaps = [after - before for (before, *_), (after, *_) in pairwise(records)]
        if number in kept:
            assert {name for _, name, _ in records} == {"ann"}
            assert max(gaps) < 1, number
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    offsets = await env.admin.committed(env.group_id, places)
    assert offsets == {TopicPartition(topic, number): len(records) for number, records in handled.items()}
    assert readers["ann"].calls.count("setup") == 1
    assert readers["ann"].calls[-1] == "cleanup"
    assert not problems


async def leave_for(env: RealEnvironment, member_id: str) -> None:
    """Remove a member with a heartbeat that leaves on its behalf."""
    request = m.ConsumerGroupHeartbeatRequest(group_id=env.group_id, member_id=member_id, member_epoch=-1)
    response = await env.admin.cluster.coordinators.request(env.group_id, request)
    assert not response.error_code


async def a_partition_moves_sooner_than_the_interval_of_the_receiver(env: RealEnvironment) -> None:
    """The new member's heartbeats are early while it has no partitions; the owner learns at its own interval of 5 s."""
    ann, bob = WorkHandler(env), WorkHandler(env)  # type: ignore[arg-type]
    async with new_group(env) as first, new_group(env, "bob") as second:
        async with running(first.run(env.topic, ann)), running(second.run(env.topic, bob)):
            await env.bell.until(lambda: len(partitions_of(second)) == 2, "halves", env.limit)
            await asyncio.sleep(12)  # both are at their regular interval
            ann.calls.clear()
            bob.calls.clear()
            third, cid = new_group(env, "cid"), WorkHandler(env)  # type: ignore[arg-type]
            async with third, running(third.run(env.topic, cid)):
                await env.bell.until(
                    lambda: any(call.startswith("revoked") for call in ann.calls + bob.calls),
                    "a revocation",
                    env.limit,
                )
                revoked_at = now()
                await env.bell.until(lambda: len(partitions_of(third)) == 1, "its partition", env.limit)
                assert now() - revoked_at < 1.0


async def a_member_that_was_removed_joins_again(env: RealEnvironment) -> None:
    handler = WorkHandler(env)  # type: ignore[arg-type]
    async with new_group(env) as group, running(group.run(env.topic, handler)):
        await handler.until("claim 3@0")
        former = handler.sessions[0].member_id
        await env.produce(1, [0])
        await handler.until("done 0@0")
        await group.commit()
        await leave_for(env, former)
        await handler.until("lost [0, 1, 2, 3]")
        await handler.until("claim 0@1")
        assert handler.sessions[1].member_id != former
        assert handler.calls.count("revoked [0, 1, 2, 3]") == 0
        await env.produce(1, [0])
        await handler.until("done 0@1")


async def a_static_member_returns_to_its_partitions(env: RealEnvironment) -> None:
    """It leaves with epoch -2: no partition moves before it is back; with `leave=True` they move at once."""
    ann, bob, back = WorkHandler(env), WorkHandler(env), WorkHandler(env)  # type: ignore[arg-type]
    async with new_group(env, "bob") as other, running(other.run(env.topic, bob)):
        async with new_group(env, group_instance_id="desk-1") as group, running(group.run(env.topic, ann)):
            await env.bell.until(lambda: len(partitions_of(group)) == 2, "halves", env.limit)
            await env.bell.until(lambda: len(partitions_of(other)) == 2, "halves", env.limit)
            for number in partitions_of(other):
                await bob.until(f"claim {number}@0")
            mine, epoch = partitions_of(group), group.session and group.session.generation_id
            calls = list(bob.calls)
            await group.aclose()
        await asyncio.sleep(2)
        async with new_group(env, group_instance_id="desk-1") as group, running(group.run(env.topic, back)):
            await env.bell.until(lambda: len(partitions_of(group)) == 2, "its partitions", env.limit)
            assert partitions_of(group) == mine
            assert group.session is not None
            assert group.session.generation_id == epoch
            assert bob.calls == calls
            await group.aclose(leave=True)
        await env.bell.until(lambda: len(partitions_of(other)) == 4, "all", env.limit)


async def an_instance_id_in_use(env: RealEnvironment) -> None:
    handler = WorkHandler(env)  # type: ignore[arg-type]
    async with new_group(env, group_instance_id="desk-1") as group, running(group.run(env.topic, handler)):
        await handler.until("claim 3@0")
        async with new_group(env, "bob", group_instance_id="desk-1") as other:
            with pytest.raises(BrokerError) as caught:
                await other.run(env.topic, WorkHandler(env))  # type: ignore[arg-type]
            assert caught.value.code == ErrorCode.UNRELEASED_INSTANCE_ID
        assert group.session is handler.sessions[0]


async def a_slow_handler_keeps_its_partitions_until_it_has_drained(env: RealEnvironment) -> None:
    """For longer than the interval, with heartbeats going on; its last record is committed before the next owner starts."""
    gate = Gate(3, 0)
    ann, bob = WorkHandler(env, gate), WorkHandler(env)  # type: ignore[arg-type]
    await env.produce(1, range(4))
    async with new_group(env) as first, running(first.run(env.topic, ann)):
        await gate.reached.wait()
        async with new_group(env, "bob") as second, running(second.run(env.topic, bob)):
            await ann.until("end 2")
            await asyncio.sleep(8)
            assert partitions_of(second) == []
            assert first.session is ann.sessions[0]
            gate.open.set()
            await env.bell.until(lambda: len(partitions_of(second)) == 2, "halves", env.limit)
            moved = partitions_of(second)
            for number in moved:
                await bob.until(f"claim {number}@1")


async def topics_change_and_the_member_stays(env: RealEnvironment) -> None:
    other = await env.create_topic("bb", 1)
    handler = WorkHandler(env)  # type: ignore[arg-type]
    async with new_group(env) as group, running(group.run(env.topic, handler)):
        await handler.until("claim 3@0")
        group.set_topics([env.topic, other])
        await env.bell.until(lambda: len(partitions_of(group)) == 5, "both", env.limit)
        await env.produce(1, [0], other)
        await handler.until("done 0@0")
        group.set_topics([other])
        await env.bell.until(lambda: partitions_of(group) == [0], "the other", env.limit)
        assert handler.calls.count("revoked [0, 1, 2, 3]") == 1
        assert len(handler.sessions) == 1


async def partitions_are_added_without_a_new_session(env: RealEnvironment) -> None:
    handler = WorkHandler(env)  # type: ignore[arg-type]
    async with new_group(env) as group, running(group.run(env.topic, handler)):
        await handler.until("claim 3@0")
        await env.admin.create_partitions(env.topic, 6)
        await env.bell.until(lambda: len(partitions_of(group)) == 6, "six", env.limit)
        await env.produce(1, [5])
        await handler.until("done 5@0")
        assert len(handler.sessions) == 1


async def auto_is_the_consumer_protocol_here(env: RealEnvironment) -> None:
    handler = WorkHandler(env)  # type: ignore[arg-type]
    config = {"group_protocol": "auto", "session_timeout": 7.0}
    async with new_group(env, **config) as group, running(group.run(env.topic, handler)):
        await env.bell.until(lambda: len(partitions_of(group)) == 4, "all", env.limit)
        assert "ConsumerMembership" in repr(membership_of(group))


async def test_auto_is_the_classic_protocol_at_an_older_broker(
    kafka_39: RunningKafka, tmp_path: Path
) -> None:
    async with ConsumerProtocolEnvironment(kafka_39.bootstrap_servers, tmp_path) as env:
        handler = WorkHandler(env)  # type: ignore[arg-type]
        async with new_group(env, group_protocol="auto") as group, running(group.run(env.topic, handler)):
            await env.bell.until(lambda: len(partitions_of(group)) == 4, "all", env.limit)
            assert "ClassicMembership" in repr(membership_of(group))
        async with new_group(env, "bob") as group:
            with pytest.raises(UnsupportedVersionError, match="classic"):
                await group.run(env.topic, handler)


async def an_assignor_that_the_coordinator_does_not_have(env: RealEnvironment) -> None:
    async with new_group(env, remote_assignor="sticky") as group:
        with pytest.raises(BrokerError) as caught:
            await group.run(env.topic, WorkHandler(env))  # type: ignore[arg-type]
        assert caught.value.code == ErrorCode.UNSUPPORTED_ASSIGNOR
        assert "uniform" in str(caught.value)


async def a_group_moves_from_one_protocol_to_the_other_and_back(env: RealEnvironment) -> None:
    """One member after the other restarts; the others go on, and every record is handled once."""
    topic = await env.create_topic("six", PARTITIONS)
    handled: Handled = {number: [] for number in range(PARTITIONS)}
    protocols = ["classic", "classic", "consumer", "consumer", "classic", "classic"]

    async with traffic(env, topic), contextlib.AsyncExitStack() as stack:
        before: ConsumerGroup | None = None
        for turn, protocol in enumerate(protocols):
            group = new_group(env, f"m{turn}", group_protocol=protocol)
            await stack.enter_async_context(group)
            await stack.enter_async_context(running(group.run(topic, Reader(env, f"m{turn}", handled))))
            await env.bell.until(
                lambda group=group: partitions_of(group), f"partitions of m{turn}", env.limit
            )
            await asyncio.sleep(1)
            if before is not None:
                await before.aclose()
                await env.bell.until(
                    lambda group=group: len(partitions_of(group)) == PARTITIONS, f"all of m{turn}", env.limit
                )
            before = group
        assert before is not None
        await before.aclose()
    for records in handled.values():
        assert [offset for _, _, offset in records] == list(range(len(records)))


async def groups_of_other_assignors_are_converted_too(env: RealEnvironment) -> None:
    """Sticky assignors have user data only in their subscriptions, which the broker does not need."""
    topic, group_id = await env.create_topic("six", PARTITIONS), env.group_id

    async def convert(assignor: str) -> None:
        handler = WorkHandler(env)  # type: ignore[arg-type]
        async with new_group(env) as group:
            classic = new_group(env, "bob", group_protocol="classic", assignors=(assignor,))
            async with classic, running(classic.run(topic, WorkHandler(env))):  # type: ignore[arg-type]
                await env.bell.until(lambda: len(partitions_of(classic)) == PARTITIONS, "all", env.limit)
                consuming = asyncio.create_task(group.run(topic, handler))
                await env.bell.until(
                    lambda: len(partitions_of(classic)) == len(partitions_of(group)) == PARTITIONS // 2,
                    f"halves, after {assignor}",
                    env.limit,
                )
            await env.bell.until(lambda: len(partitions_of(group)) == PARTITIONS, "all", env.limit)
            await group.aclose()
            await consuming
        assert len(handler.sessions) == 1

    for assignor in ("roundrobin", "sticky", "cooperative-sticky"):
        env.group_id = f"{group_id}-{assignor}"
        await convert(assignor)


@pytest.mark.soak
async def test_the_coordinator_is_killed_and_comes_back(kafka_to_break: ApacheKafka, tmp_path: Path) -> None:
    """Within the session timeout: the members stay in the group, and commit under the epoch that they had."""
    async with ConsumerProtocolEnvironment(kafka_to_break.bootstrap_servers, tmp_path) as env:
        ann, bob = WorkHandler(env), WorkHandler(env)  # type: ignore[arg-type]
        async with new_group(env) as first, new_group(env, "bob") as second:
            async with running(first.run(env.topic, ann)), running(second.run(env.topic, bob)):
                await env.bell.until(
                    lambda: len(partitions_of(first)) == len(partitions_of(second)) == 2, "halves", env.limit
                )
                await env.produce(1, range(4))
                for number in range(4):
                    reader = ann if number in partitions_of(first) else bob
                    await reader.until(f"done {number}@0")
                kafka_to_break.kill(1)
                await asyncio.sleep(2)
                await asyncio.to_thread(kafka_to_break.start_node, 1)
                await env.produce(1, range(4))
                for number in range(4):
                    reader = ann if number in partitions_of(first) else bob
                    await reader.until(f"done {number}@1")
                await first.commit()
                await second.commit()
                places = [TopicPartition(env.topic, number) for number in range(4)]
                assert set((await env.admin.committed(env.group_id, places)).values()) == {2}
                assert len(ann.sessions) == len(bob.sessions) == 1
                await asyncio.sleep(6)
                assert first.health().is_healthy
                assert second.health().is_healthy
                assert len(ann.sessions) == len(bob.sessions) == 1


async def a_group_shared_with_librdkafka(env: RealEnvironment) -> None:
    """It leaves its partitions to our member, and ours to it; each record is handled once."""
    consumed: list[tuple[int, int]] = []
    owned: list[int] = []
    stop = threading.Event()

    def consume() -> None:
        def assigned(consumer: Any, partitions: list[Any]) -> None:
            owned.extend(tp.partition for tp in partitions)
            consumer.incremental_assign(partitions)

        def revoked(consumer: Any, partitions: list[Any]) -> None:
            for tp in partitions:
                owned.remove(tp.partition)
            consumer.incremental_unassign(partitions)

        config = {
            "bootstrap.servers": env.bootstrap_servers,
            "group.id": env.group_id,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
        }
        peer = confluent_kafka.Consumer(config)
        peer.subscribe([env.topic], on_assign=assigned, on_revoke=revoked)
        try:
            while not stop.is_set():
                message = peer.poll(0.1)
                if message is not None and not message.error():
                    consumed.append((message.partition(), message.offset()))
        finally:
            peer.close()

    handler = WorkHandler(env)  # type: ignore[arg-type]
    async with new_group(env) as group, running(group.run(env.topic, handler)):
        await handler.until("claim 3@0")
        await env.produce(1, range(4))
        for number in range(4):
            await handler.until(f"done {number}@0")
        thread = asyncio.ensure_future(asyncio.to_thread(consume))
        try:
            await env.bell.until(
                lambda: len(owned) == 2 and len(partitions_of(group)) == 2, "halves", env.limit
            )
            assert sorted([*owned, *partitions_of(group)]) == [0, 1, 2, 3]
            await env.produce(1, range(4))
            for number in partitions_of(group):
                await handler.until(f"done {number}@1")
            await env.bell.until(lambda: len(consumed) == 2, "its records", env.limit)
            assert sorted(consumed) == sorted((number, 1) for number in owned)
        finally:
            stop.set()
            await thread
        await env.bell.until(lambda: len(partitions_of(group)) == 4, "all", env.limit)
        await env.produce(1, range(4))
        for number in range(4):
            await handler.until(f"done {number}@2")
        assert len(handler.sessions) == 1


async def a_pattern_and_a_topic_that_is_deleted_and_recreated(env: RealEnvironment) -> None:
    suffix = env.topic.removeprefix("orders")
    first = await env.create_topic("cc1", 1)
    handler = WorkHandler(env)  # type: ignore[arg-type]

    config = {"allow_auto_topic_creation": False}  # else metadata requests create the deleted topic again
    pattern = re.compile(f"cc.*{suffix}")
    async with new_group(env, **config) as group, running(group.run(pattern, handler)):
        await env.bell.until(lambda: topics_of(group) == {first}, "the first topic", env.limit)
        second = await env.create_topic("cc2", 1)
        await env.bell.until(lambda: topics_of(group) == {first, second}, "both topics", env.limit)
        member_id = handler.sessions[0].member_id
        await env.produce(2, [0], second)
        await handler.until("done 0@1")
        handler.calls.clear()
        await env.admin.delete_topic(second)
        await env.admin.recreate_topic(second, 1)
        await env.produce(1, [0], second)
        await handler.until("done 0@0")
        await env.admin.delete_topic(second)
        await env.bell.until(lambda: topics_of(group) == {first}, "the first topic alone", env.limit)
        assert {session.member_id for session in handler.sessions} == {member_id}


async def a_pattern_that_the_broker_matches(env: RealEnvironment) -> None:
    """One session: with topics that appear later, a topic that is deleted and recreated, and changes of the subscription."""
    suffix = env.topic.removeprefix("orders")
    first = await env.create_topic("re1", 1)
    handler = WorkHandler(env)  # type: ignore[arg-type]

    async def assigned(*wanted: str) -> None:
        await env.bell.until(lambda: topics_of(group) == set(wanted), f"topics {wanted}", env.limit)

    config = {"allow_auto_topic_creation": False, "auto_offset_reset": "latest"}
    pattern = SubscriptionPattern(f"re.*{suffix}")
    async with new_group(env, **config) as group, running(group.run(pattern, handler)):
        await assigned(first)
        second = await env.create_topic("re2", 1)
        await env.produce(2, [0], second)
        await handler.until("done 0@1")
        await assigned(first, second)
        handler.calls.clear()
        await env.admin.delete_topic(second)
        await env.admin.recreate_topic(second, 1)
        await env.produce(1, [0], second)
        await handler.until("done 0@0")
        await env.admin.delete_topic(second)
        await assigned(first)
        group.set_topics(env.topic)
        await assigned(env.topic)
        group.set_topics(SubscriptionPattern(f"re1.*{suffix}|re2.*{suffix}"))
        await assigned(first)
        assert len(handler.sessions) == 1


async def a_malformed_pattern(env: RealEnvironment) -> None:
    async with new_group(env) as group:
        with pytest.raises(BrokerError, match=r"SubscriptionPattern\('orders\('\)") as caught:
            await group.run(SubscriptionPattern("orders("), WorkHandler(env))  # type: ignore[arg-type]
        assert caught.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION


async def a_static_member_returns_with_names_instead_of_a_pattern(env: RealEnvironment) -> None:
    suffix = env.topic.removeprefix("orders")
    other = await env.create_topic("re1", 1)
    for topics, wanted in ((SubscriptionPattern(f"re.*{suffix}"), other), (env.topic, env.topic)):
        handler = WorkHandler(env)  # type: ignore[arg-type]
        async with new_group(env, group_instance_id="one") as group, running(group.run(topics, handler)):
            await handler.until("claim 0@0")
            assert group.session is not None
            assert {tp.topic for tp in group.session.partitions} == {wanted}


async def a_static_member_comes_back_by_the_other_protocol(env: RealEnvironment) -> None:
    """It gets its own partitions again, also back, while the other member has the classic protocol."""
    topic = await env.create_topic("six", PARTITIONS)
    config: dict[str, Any] = {"group_protocol": "classic", "assignors": ("cooperative-sticky",)}
    handler = WorkHandler(env)  # type: ignore[arg-type]
    async with new_group(env, "bob", **config) as other, running(other.run(topic, handler)):
        owned = []
        for own in (config, {}, {}, config):
            async with (
                new_group(env, group_instance_id="one", **own) as group,
                running(group.run(topic, WorkHandler(env))),  # type: ignore[arg-type]
            ):
                await env.bell.until(
                    lambda group=group: len(partitions_of(group)) == PARTITIONS // 2, "half", env.limit
                )
                await asyncio.sleep(1)
                owned.append(partitions_of(group))
        assert owned == [owned[0]] * 4
        assert len(handler.sessions) == 1, "the other member goes on"


class WithUserData:
    """Assigns all partitions to one member, with user data."""

    name = "with-user-data"

    def assign(self, members: Any, counts: Any) -> dict[str, Assignment]:
        everything = [TopicPartition(topic, n) for topic, count in counts.items() for n in range(count)]
        return {member.member_id: Assignment(everything, b"custom") for member in members[:1]}


async def a_classic_group_whose_assignments_have_user_data(env: RealEnvironment) -> None:
    """The broker refuses to convert it, and its message says why."""
    handler = WorkHandler(env)  # type: ignore[arg-type]
    classic = new_group(env, group_protocol="classic", assignors=(WithUserData(),))
    async with classic, running(classic.run(env.topic, handler)):
        await handler.until("claim 3@0")
        async with new_group(env, "bob") as group:
            with pytest.raises(BrokerError) as caught:
                await group.run(env.topic, WorkHandler(env))  # type: ignore[arg-type]
            assert "assignor" in str(caught.value)
        assert len(handler.sessions) == 1


STORIES: list[Callable[[RealEnvironment], Awaitable[None]]] = [
    members_join_and_leave,
    a_partition_moves_sooner_than_the_interval_of_the_receiver,
    a_member_that_was_removed_joins_again,
    a_static_member_returns_to_its_partitions,
    an_instance_id_in_use,
    a_slow_handler_keeps_its_partitions_until_it_has_drained,
    topics_change_and_the_member_stays,
    partitions_are_added_without_a_new_session,
    auto_is_the_consumer_protocol_here,
    an_assignor_that_the_coordinator_does_not_have,
    a_group_moves_from_one_protocol_to_the_other_and_back,
    groups_of_other_assignors_are_converted_too,
    a_group_shared_with_librdkafka,
    a_pattern_and_a_topic_that_is_deleted_and_recreated,
    a_pattern_that_the_broker_matches,
    a_malformed_pattern,
    a_static_member_returns_with_names_instead_of_a_pattern,
    a_static_member_comes_back_by_the_other_protocol,
    a_classic_group_whose_assignments_have_user_data,
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stories(
    request: pytest.FixtureRequest, apache_kafka: RunningKafka, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ConcurrentStories]:
    """The selected stories, running."""

    async def run(story: Callable[[RealEnvironment], Awaitable[None]]) -> None:
        directory = tmp_path_factory.mktemp(story.__name__)
        async with ConsumerProtocolEnvironment(apache_kafka.bootstrap_servers, directory) as env:
            await story(env)

    partials = {story.__name__: functools.partial(run, story) for story in STORIES}
    names = selected(request, partials)
    async with ConcurrentStories({name: partials[name] for name in names}, AT_ONCE) as running_stories:
        yield running_stories


@NEEDS_KAFKA_4
@pytest.mark.usefixtures("kafka_at_hand")
@pytest.mark.parametrize("name", [story.__name__ for story in STORIES])
async def test_story(stories: ConcurrentStories, name: str) -> None:
    await stories.wait(name)


ON_BOTH = [
    a_group_moves_from_one_protocol_to_the_other_and_back,
    a_classic_group_whose_assignments_have_user_data,
]
"""Stories about live groups that change their protocol."""


@pytest.mark.parametrize("story", thinned(ON_BOTH[::-1]), ids=lambda story: f"embedded {story.__name__}")
async def test_story_on_the_embedded_broker(
    story: Callable[[RealEnvironment], Awaitable[None]], tmp_path: Path
) -> None:
    async with (
        EmbeddedCluster(1) as cluster,
        ConsumerProtocolEnvironment(cluster.bootstrap_servers, tmp_path) as env,
    ):
        await story(env)
