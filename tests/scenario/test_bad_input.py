"""Invalid input: each error names its cause, and nothing is left running or committed.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from asyncgroup import (
    BrokerError,
    Claim,
    ClosedError,
    Cluster,
    ConfigError,
    Consumer,
    ConsumerConfig,
    ConsumerGroup,
    ErrorCode,
    ExclusiveProducer,
    NoBrokersError,
    OffsetManager,
    Producer,
    Session,
    TopicPartition,
)
from asyncgroup.errors import AssignmentError, UsageError
from asyncgroup.group import RangeAssignor
from tests.broker.internals import controller_of
from tests.scenario.support import WorkHandler, committed, member, now, running
from tests.stories.environment import CONSUMER
from tests.stories.virtual import VirtualEnvironment


async def handle(_session, _claim):
    raise AssertionError("this handler must not be called")


# -- bootstrap servers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("servers", "named"),
    [
        ("10.9.9.9:9092", "10.9.9.9:9092"),
        ("10.9.9.9:9092,10.9.9.8:9092", "10.9.9.8:9092"),
        ("no-such-host:9092", "no-such-host:9092"),
    ],
)
async def test_unreachable_bootstrap(servers: str, named: str):
    with pytest.raises(NoBrokersError, match=re.escape(named)):
        async with ConsumerGroup(servers, "g"):
            pytest.fail("entered")


async def test_bootstrap_servers_that_drop_packets(network):
    """The connection is neither refused nor answered: connect_timeout applies."""
    network.blackhole("10.9.9.9", 9092)
    began = now()
    with pytest.raises(NoBrokersError, match=r"10\.9\.9\.9:9092.*no answer in time"):
        async with ConsumerGroup("10.9.9.9:9092", "g", ConsumerConfig(connect_timeout=5.0)):
            pytest.fail("entered")
    assert now() - began == pytest.approx(5.0)


async def test_bootstrap_that_accepts_and_never_answers(network):
    network.blackhole("10.9.9.9", 9092, connect="accept")
    began = now()
    with pytest.raises(NoBrokersError, match=r"10\.9\.9\.9:9092"):
        async with ConsumerGroup("10.9.9.9:9092", "g", ConsumerConfig(connect_timeout=5.0)):
            pytest.fail("entered")
    assert now() - began == pytest.approx(5.0)


async def test_one_good_bootstrap_address_is_enough(env: VirtualEnvironment):
    async with ConsumerGroup(f"10.9.9.9:9092,{env.bootstrap_servers}", "g", ConsumerConfig()) as group:
        assert len(group.cluster.view.brokers) == 3


@pytest.mark.parametrize(
    "servers", ["localhost", "localhost:", "localhost:port", "::1:9092", "", [], None, 9092]
)
async def test_malformed_bootstrap(servers):
    with pytest.raises(ConfigError, match="bootstrap_servers"):
        ConsumerGroup(servers, "g")


# -- topics -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["consume", "run"])
async def test_unknown_topic(env: VirtualEnvironment, how: str):
    async with member(env) as group:
        began = now()
        with pytest.raises(BrokerError, match=r"'oders'.*UNKNOWN_TOPIC_OR_PARTITION") as caught:
            await getattr(group, how)(["orders", "oders"], handle)
        assert caught.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert now() - began < 10.0
    assert env.cluster.history.of("JoinGroup") == []
    assert "oders" not in controller_of(env.cluster).topics


@pytest.mark.parametrize(
    ("topics", "named"),
    [
        ([], "it is empty"),
        ("", "topic=''"),
        ("or/ders", "topic='or/ders'"),
        (["orders", "."], r"topic='\.'"),
        ("x" * 250, "topic='xxx"),
        (None, "topics=None"),
        (5, "topics=5"),
        ([5], "topic=5"),
        (b"orders", "topics=b'orders'"),
        (re.compile(b"orders"), "a pattern of str"),
    ],
    ids=repr,
)
async def test_invalid_topics(env: VirtualEnvironment, topics, named: str):
    async with member(env) as group:
        with pytest.raises(ConfigError, match=named):
            await group.run(topics, handle)
    assert env.cluster.history.of("JoinGroup") == []


@pytest.mark.parametrize("how", ["consume", "run"])
async def test_a_topic_deleted_while_it_is_consumed(handler: WorkHandler, env: VirtualEnvironment, how: str):
    """The leader learns of it from the metadata and joins again without it; `run` then waits for it."""
    await env.produce(5, [0])
    async with member(env) as group, running(getattr(group, how)("orders", handler)) as consuming:
        await handler.until("done 0@4")
        env.cluster.delete_topic("orders")
        if how == "run":
            await asyncio.sleep(60.0)
            assert not consuming.done()
            assert group.health().waits_for == "topic 'orders' to exist"
        else:
            await consuming
        assert type(handler.sessions[0].cause).__name__ == "PartitionsChanged"


async def test_a_pattern_that_matches_nothing_waits(env: VirtualEnvironment):
    """It is no error, because a topic may be created later. The member joins without claims."""
    async with member(env) as group, running(group.run(re.compile("payments-.*"), WorkHandler(env))):
        ann = group
        await env.bell.until(
            lambda: ann.session is not None and not ann.session.claims, "a session", env.limit
        )


# -- handlers -----------------------------------------------------------------------------------------------------------


class SyncSetup(WorkHandler):
    def setup(self, session):  # type: ignore[override]
        """Defined without `async` by mistake."""


@pytest.mark.parametrize(
    ("handler", "named"),
    [
        (lambda session, claim: None, r"in_thread\(fn\)"),
        (WorkHandler, "not its class"),
        (None, "handler=None"),
        (SyncSetup.__new__(SyncSetup), r"SyncSetup\.setup"),
    ],
    ids=["plain function", "class", "None", "plain method"],
)
async def test_invalid_handlers(env: VirtualEnvironment, handler, named: str):
    async with member(env) as group:
        with pytest.raises(ConfigError, match=named):
            await group.run("orders", handler)
    assert env.cluster.history.of("JoinGroup") == []


# -- partitions, times and functions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [(["orders"], 0), ("orders", [0]), ({}, 0)])
async def test_values_without_a_hash_in_place_of_a_partition(env: VirtualEnvironment, place: Any):
    async def mark(session: Session, claim: Claim) -> None:
        with pytest.raises(ConfigError, match="partition="):
            session.mark_offset(*place, 5)
        with pytest.raises(ConfigError, match="partition="):
            session.reset_offset(*place, 5)
        marked.set()
        await claim.wait_ended()

    marked = asyncio.Event()
    async with (
        Consumer(env.bootstrap_servers) as consumer,
        OffsetManager(env.bootstrap_servers, "g") as offsets,
    ):
        with pytest.raises(ConfigError, match="partition="):
            await consumer.partition(*place)
        with pytest.raises(ConfigError, match="partition="):
            offsets.of(*place)
    async with member(env) as group, running(group.run("orders", mark)):
        await marked.wait()


@pytest.mark.parametrize("times", [None, 5, "orders", [("orders", 0)]])
async def test_times_without_partitions(env: VirtualEnvironment, times: Any):
    async with Consumer(env.bootstrap_servers) as consumer:
        with pytest.raises(ConfigError, match="times="):
            await consumer.offsets_for_times(times)


@pytest.mark.parametrize("record", [None, 5, "x", TopicPartition("orders", 0)])
async def test_marks_of_values_that_are_not_records(env: VirtualEnvironment, record: Any):
    async with OffsetManager(env.bootstrap_servers, "g") as offsets:
        marks = await offsets.manage("orders", 0)
        with pytest.raises(ConfigError, match="record="):
            marks.mark_record(record)
        assert marks.next_offset == -1


async def test_a_class_in_place_of_an_offset(env: VirtualEnvironment):
    async with Consumer(env.bootstrap_servers) as consumer:
        with pytest.raises(ConfigError, match="offset="):
            await consumer.partition("orders", 0, int)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [5, "now"])
def test_clocks_and_sources_of_random_choices(wrong: Any):
    makers: list[Callable[..., object]] = [Producer, partial(ExclusiveProducer, topic="orders")]
    for make in [*makers, Consumer]:
        with pytest.raises(ConfigError, match="clock="):
            make("localhost:9092", clock=wrong)
    for make in [*makers, Cluster]:
        with pytest.raises(ConfigError, match="rng="):
            make("localhost:9092", rng=wrong)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("wait", "no"),
        ("group_id", 5),
        ("group_id", ""),
        ("session_timeout", "10"),
        ("session_timeout", None),
        ("session_timeout", -1.0),
        ("hooks", None),
    ],
)
def test_arguments_of_exclusive_producers(key: str, value: Any):
    with pytest.raises(ConfigError, match=f"{key}="):
        ExclusiveProducer("localhost:9092", "orders", **{key: value})


# -- the group and its settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("group_id", ["", "  ", None, 5, "g" * 40_000])
async def test_bad_group_id(group_id):
    with pytest.raises(ConfigError, match="group_id"):
        ConsumerGroup("localhost:9092", group_id)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (
            {"session_timeout": 3.0, "heartbeat_interval": 3.0},
            r"heartbeat_interval=3\.0.*session_timeout=3\.0",
        ),
        ({"session_timeout": 2.0}, r"session_timeout=2\.0.*heartbeat_interval=3\.0, its default"),
        ({"session_timeout": 10_000}, r"session_timeout=10000.*durations are seconds: 10\.0\?"),
        ({"rebalance_timeout": 60_000}, r"rebalance_timeout=60000.*durations are seconds: 60\.0\?"),
        ({"auto_commit_interval": 5000}, r"auto_commit_interval=5000.*seconds: 5\.0\?"),
        ({"request_timeout": 30_000}, r"request_timeout=30000.*seconds: 30\.0\?"),
        ({"session_timeout": 0}, "session_timeout=0"),
        ({"session_timeout": "10"}, "session_timeout='10'"),
        ({"auto_offset_reset": "newest"}, "auto_offset_reset='newest'.*earliest"),
        ({"assignors": ("sticky-ish",)}, "sticky-ish"),
        ({"assignors": ()}, "assignors"),
        ({"assignors": ("range", RangeAssignor())}, "range.*each name once"),
        ({"group_instance_id": "desk 1"}, "group_instance_id='desk 1'"),
        ({"max_processing_time": 0}, "max_processing_time=0"),
    ],
    ids=lambda value: re.sub(" at 0x[0-9a-f]+", "", str(value)),
)
async def test_invalid_settings(settings: dict[str, object], named: str):
    with pytest.raises(ConfigError, match=named):
        ConsumerGroup("localhost:9092", "g", ConsumerConfig(**settings))


async def test_settings_that_the_broker_rejects(network):
    """A session timeout outside of the broker's limits: its error is raised and names the group."""
    async with (
        VirtualEnvironment.made(group_max_session_timeout=30.0) as env,
        member(env, session_timeout=40.0) as group,
    ):
        with pytest.raises(BrokerError, match=r"'g'.*INVALID_SESSION_TIMEOUT"):
            await group.run("orders", handle)


async def test_a_full_group(network):
    async with VirtualEnvironment.made(group_max_size=1) as env:
        await env.member("ann")
        async with member(env, "bob") as group:
            with pytest.raises(BrokerError, match=r"'g'.*GROUP_MAX_SIZE_REACHED"):
                await group.run("orders", handle)


async def test_members_that_share_no_assignor(env: VirtualEnvironment):
    ann = await env.member("ann", assignors=("range",))
    await env.settled(ann)
    async with member(env, "bob", assignors=("roundrobin", "sticky")) as group:
        with pytest.raises(BrokerError, match=r"'g'.*INCONSISTENT_GROUP_PROTOCOL") as caught:
            await group.run("orders", handle)
    assert "this member has assignors=('roundrobin', 'sticky'), " in str(caught.value)
    assert "kafka-consumer-groups --describe --state" in str(caught.value)
    assert ann.session is not None


async def test_an_assignor_that_the_coordinator_does_not_have(env: VirtualEnvironment):
    async with member(env, **CONSUMER, remote_assignor="sticky") as group:
        with pytest.raises(
            BrokerError, match=r"remote_assignor='sticky'.*'g'.*UNSUPPORTED_ASSIGNOR"
        ) as caught:
            await group.run("orders", handle)
    assert "is not one of uniform, range" in str(caught.value), "the broker's own message"
    assert "group.consumer.assignors" in str(caught.value)


class WrongAssignor(RangeAssignor):
    name = "wrong"

    def __init__(self, plan) -> None:
        self.plan = plan

    def assign(self, members, counts):
        return self.plan(members)


def absurd(_members):
    raise LookupError("no plan today")


@pytest.mark.parametrize(
    ("plan", "error", "named"),
    [
        (absurd, LookupError, "no plan today"),
        (lambda _: {"nobody": [("orders", 0)]}, AssignmentError, "'wrong'.*'nobody'"),
    ],
    ids=["raises", "unknown member"],
)
async def test_an_assignor_that_fails(env: VirtualEnvironment, plan, error: type[Exception], named: str):
    """run() raises its exception; the member leaves with its context and does not delay the group."""
    async with member(env, assignors=(WrongAssignor(plan),)) as group:
        with pytest.raises(error, match=named):
            await group.run("orders", handle)
    assert env.cluster.group("g").members == {}


async def test_a_group_whose_cluster_is_not_open(env: VirtualEnvironment):
    async with ConsumerGroup(Cluster(env.bootstrap_servers), "g") as group:
        with pytest.raises(ClosedError, match=r"'g' is not open: use `async with Cluster"):
            await group.run("orders", handle)


async def test_after_closing_and_before_opening(env: VirtualEnvironment):
    group = ConsumerGroup(env.bootstrap_servers, "g")
    with pytest.raises(ClosedError, match="'g' is not open"):
        await group.run("orders", handle)
    async with group:
        pass
    with pytest.raises(ClosedError, match="'g' was closed"):
        await group.consume("orders", handle)
    with pytest.raises(ClosedError):
        async with group:
            pytest.fail("entered twice")


async def test_a_call_from_another_event_loop(handler: WorkHandler, env: VirtualEnvironment):
    """Regression test: the call waited without end and kept a lock, so that `aclose` failed."""
    await env.produce(1, [0])
    async with member(env) as group, running(group.run("orders", handler)) as consuming:
        await handler.until("done 0@0")

        async def call(method: Callable[[], Coroutine[Any, Any, None]]) -> None:
            with pytest.raises(UsageError, match="'g' belongs to another event loop"):
                await method()

        for method in (group.aclose, group.__aenter__, lambda: group.run("orders", handler)):
            await asyncio.to_thread(asyncio.run, call(method))
        assert not consuming.done()
    assert committed(env) == {0: 1}


async def test_a_commit_after_the_end(handler: WorkHandler, env: VirtualEnvironment):
    """A session that has ended raises an error that names it; nothing is sent to the broker."""
    await env.produce(2, [0])
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("done 0@1")
        await group.aclose()
        before = committed(env)
        (session,) = handler.sessions
        with pytest.raises(RuntimeError, match=r"'g' generation 1 .* has ended"):
            await session.commit()
        with pytest.raises(ConfigError, match="orders-0"):
            session.mark_offset("orders", 0, 99)
        assert committed(env) == before == {0: 2}
