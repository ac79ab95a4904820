"""SubscriptionPattern: topics that the coordinator matches by a regular expression (KIP-848).

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from asyncgroup import BrokerError, Claim, ConfigError, ErrorCode, Session, SubscriptionPattern
from asyncgroup.broker.metadata.features import DEFAULT_LEVELS
from asyncgroup.group.consumer_group import ConsumerGroup
from asyncgroup.wire import messages as m
from tests.profiles import long_family
from tests.scenario.rebalances.test_changing_topics import TopicHandler
from tests.scenario.support import WorkHandler, member, running
from tests.stories.environment import CONSUMER
from tests.stories.virtual import VirtualEnvironment


@pytest_asyncio.fixture
async def env() -> AsyncIterator[VirtualEnvironment]:
    made = VirtualEnvironment.made(
        nodes=1, group_consumer_heartbeat_interval=3.0, group_consumer_assignment_interval=0.1
    )
    async with made as environment:
        environment.protocol = CONSUMER
        yield environment


async def create(env: VirtualEnvironment, *topics: str) -> None:
    for topic in topics:
        await env.create_topic(topic, 1)


def topics_of(group: ConsumerGroup) -> set[str]:
    return set() if group.session is None else {tp.topic for tp in group.session.partitions}


async def assigned(env: VirtualEnvironment, group: ConsumerGroup, *topics: str) -> None:
    """Wait until the group's member has exactly these topics."""
    await env.bell.until(lambda: topics_of(group) == set(topics), f"topics {topics}", env.limit)


def heartbeats(env: VirtualEnvironment) -> list[m.ConsumerGroupHeartbeatRequest]:
    return [exchange.request for exchange in env.cluster.history.of("ConsumerGroupHeartbeat")]


def sent(env: VirtualEnvironment) -> list[tuple[list[str] | None, str]]:
    """Return the topics and the pattern of each heartbeat that changes the subscription."""
    return [
        (request.subscribed_topic_names, request.subscribed_topic_regex)
        for request in heartbeats(env)
        if request.member_epoch > 0
        and request.subscribed_topic_regex is not None
        and request.rebalance_timeout_ms < 0
    ]


def requested(env: VirtualEnvironment, name: str = "ann") -> list[Any]:
    """Return what each of the member's Metadata requests asks for: names, ids, or None for all topics."""
    return [
        None
        if exchange.request.topics is None
        else [topic.name or topic.topic_id for topic in exchange.request.topics]
        for exchange in env.cluster.history.of("Metadata", client_id=name)
    ]


async def test_topics_that_exist_and_topics_that_appear_later(env: VirtualEnvironment) -> None:
    """The session stays the same; topics that were created since are read from their first record, also with `latest`."""
    await create(env, "eu-a", "eu-b", "us-a")
    await env.produce(2, [0], "eu-a")
    handler = TopicHandler(env)
    async with (
        member(env, auto_offset_reset="latest", metadata_refresh_interval=600.0) as group,
        running(group.run(SubscriptionPattern("eu-.*"), handler)),
    ):
        await assigned(env, group, "eu-a", "eu-b")
        await handler.until("assigned eu-a-0,eu-b-0")
        await create(env, "eu-c", "us-b", "not-eu-c")
        await env.produce(2, [0], "eu-c")
        await handler.until("eu-c-0@1")
        await env.produce(1, [0], "eu-a")
        await handler.until("eu-a-0@2")
        assert [call for call in handler.calls if "@" in call] == ["eu-c-0@0", "eu-c-0@1", "eu-a-0@2"]
        assert handler.calls.count("setup") == 1
    (join,) = [request for request in heartbeats(env) if request.member_epoch == 0]
    assert (join.subscribed_topic_names, join.subscribed_topic_regex) == ([], "eu-.*")
    found = requested(env)
    assert found.count(None) == 1, "once: which topics exist, so that later ones are known to be new"
    ids = {env.cluster.topic(name).id for name in ("eu-a", "eu-b", "eu-c")}
    assert {entry for topics in found if topics for entry in topics} == {"eu-a", "eu-b", "eu-c", *ids}


async def test_the_whole_name_has_to_match(env: VirtualEnvironment) -> None:
    await create(env, "eu", "eu-a", "neu")
    async with (
        member(env) as group,
        running(group.run(SubscriptionPattern("eu"), TopicHandler(env))),
    ):
        await assigned(env, group, "eu")


async def test_patterns_as_librdkafka_sends_them(env: VirtualEnvironment) -> None:
    """It puts each pattern in parentheses, with the `^` by which it is known as one."""
    await create(env, "orders-eu", "my-orders", "Xa", "x1")  # beside `orders`
    handler = TopicHandler(env)
    async with (
        member(env, metadata_refresh_interval=600.0) as group,
        running(group.run(SubscriptionPattern("(^orders.*)"), handler)),
    ):
        await assigned(env, group, "orders", "orders-eu")
        await create(env, "orders-new", "no-orders")
        await assigned(env, group, "orders", "orders-eu", "orders-new")
        group.set_topics(SubscriptionPattern("(^orders-[eu].)|(^(?i)x[[:alpha:]]+$)"))
        await assigned(env, group, "orders-eu", "Xa")
        assert handler.calls.count("setup") == 1


async def test_the_topics_change_between_names_and_patterns(env: VirtualEnvironment) -> None:
    await create(env, "a", "b", "c")
    handler = TopicHandler(env)
    async with member(env) as group, running(group.run("a", handler)):
        await assigned(env, group, "a")
        group.set_topics(SubscriptionPattern("[ab]"))
        await assigned(env, group, "a", "b")
        group.set_topics(SubscriptionPattern("[bc]"))
        await assigned(env, group, "b", "c")
        group.set_topics(["c", "a"])
        await assigned(env, group, "a", "c")
        assert handler.calls.count("setup") == 1
        assert sent(env) == [([], "[ab]"), (None, "[bc]"), (["a", "c"], "")]


async def test_two_members_share_the_topics(env: VirtualEnvironment) -> None:
    await create(env, "eu-a", "eu-b", "eu-c", "eu-d")
    everything = {"eu-a", "eu-b", "eu-c", "eu-d"}
    pattern = SubscriptionPattern("eu-.*")
    ann, bob = TopicHandler(env), TopicHandler(env)
    async with member(env) as first, running(first.run(pattern, ann)):
        await assigned(env, first, *everything)
        async with member(env, "bob") as second, running(second.run(pattern, bob)):
            await env.bell.until(lambda: len(topics_of(second)) == 2, "half of them", env.limit)
            await env.bell.until(
                lambda: topics_of(first) == everything - topics_of(second), "the others", env.limit
            )
        await assigned(env, first, *everything)
    assert len(ann.sessions) == 1


async def test_records_and_consume(env: VirtualEnvironment) -> None:
    await create(env, "eu-a")
    await env.produce(2, [0], "eu-a")
    pattern = SubscriptionPattern("eu-.*")
    async with member(env) as group:
        records = group.records(pattern)
        assert group.records(SubscriptionPattern("eu-.*")) is records
        assert (await anext(records)).topic == "eu-a"
        await records.aclose()
        handler = TopicHandler(env)
        async with running(group.consume(pattern, handler)) as consuming:
            await handler.until("eu-a-0@1")
            await group.aclose()
            await consuming


async def test_a_topic_that_is_deleted_and_recreated(env: VirtualEnvironment) -> None:
    await create(env, "eu-a", "eu-b")
    await env.produce(3, [0], "eu-b")
    handler = TopicHandler(env)
    config = {"auto_offset_reset": "latest", "metadata_refresh_interval": 600.0}
    async with (
        member(env, **config) as group,
        running(group.run(SubscriptionPattern("eu-.*"), handler)) as run,
    ):
        await assigned(env, group, "eu-a", "eu-b")
        env.cluster.delete_topic("eu-b")
        await assigned(env, group, "eu-a")
        env.cluster.create_topic("eu-b", 1)
        env.produced.clear()
        await env.produce(2, [0], "eu-b")
        await handler.until("eu-b-0@1")
        env.cluster.delete_topic("eu-b")
        env.cluster.create_topic("eu-b", 1)
        env.produced.clear()
        await env.produce(1, [0], "eu-b")
        await handler.until("eu-b-0@0", times=2)
        assert [call for call in handler.calls if call.startswith("eu-b")] == [
            "eu-b-0@0",
            "eu-b-0@1",
            "eu-b-0@0",
        ]
        assert not run.done()


async def test_a_static_member_returns_and_knows_its_assignment_in_setup(env: VirtualEnvironment) -> None:
    await create(env, "eu-a", "us-a")
    seen: list[dict[str, list[int]]] = []

    class Setup(WorkHandler):
        async def setup(self, session: Session) -> None:
            seen.append(dict(session.assignment))

    static = {"group_instance_id": "one"}
    pattern = SubscriptionPattern("eu-.*")
    async with member(env, **static) as group, running(group.run(pattern, Setup(env))):
        await assigned(env, group, "eu-a")
    seen.clear()
    handler = Setup(env)
    async with member(env, **static) as group, running(group.run(pattern, handler)):
        await handler.until("claim 0@0")
        assert seen == [{"eu-a": [0]}]
    async with member(env, **static) as group, running(group.run("us-a", Setup(env))):
        await assigned(env, group, "us-a")


async def test_a_malformed_expression(env: VirtualEnvironment) -> None:
    await create(env, "eu-a")
    handler = TopicHandler(env)
    async with member(env) as group:
        with pytest.raises(
            BrokerError, match=r"SubscriptionPattern\('eu\('\).*INVALID_REGULAR_EXPRESSION"
        ) as caught:
            await group.run(SubscriptionPattern("eu("), handler)
        assert caught.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION
        assert handler.calls == []
        async with running(group.run(SubscriptionPattern("eu-.*"), handler)) as run:
            await handler.until("assigned eu-a-0")
            group.set_topics(SubscriptionPattern("eu("))
            with pytest.raises(BrokerError, match=r"SubscriptionPattern\('eu\('\)"):
                await run


@pytest.mark.parametrize(
    "call",
    [
        lambda group, pattern, handler: group.run(pattern, handler),
        lambda group, pattern, handler: group.consume(pattern, handler),
        lambda group, pattern, _handler: group.records(pattern),
    ],
    ids=["run", "consume", "records"],
)
async def test_classic_groups_have_no_such_patterns(
    env: VirtualEnvironment, call: Callable[[ConsumerGroup, SubscriptionPattern, WorkHandler], Any]
) -> None:
    allowed = r"topics=SubscriptionPattern\('a'\) is not allowed: .*compiled pattern.*group_protocol"
    classic = {"group_protocol": "classic", "session_timeout": 10.0, "heartbeat_interval": 3.0}
    async with member(env, **classic) as group:
        with pytest.raises(ConfigError, match=allowed):
            await call(group, SubscriptionPattern("a"), WorkHandler(env))
        handler = WorkHandler(env)
        async with running(group.run("orders", handler)) as run:
            await handler.until("setup")
            with pytest.raises(ConfigError, match=allowed):
                group.set_topics(SubscriptionPattern("a"))
            assert not run.done()


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
async def test_auto_refuses_them_if_the_brokers_have_only_the_classic_protocol(
    env: VirtualEnvironment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, assignor: str
) -> None:
    await create(env, "eu-a")
    auto = {"group_protocol": "auto", "session_timeout": 10.0, "heartbeat_interval": 3.0}
    pattern = SubscriptionPattern("eu-.*")
    async with member(env, **auto) as group, running(group.run(pattern, TopicHandler(env))):
        await assigned(env, group, "eu-a")
    monkeypatch.setitem(DEFAULT_LEVELS, "group.version", 0)
    handler = WorkHandler(env)
    async with member(env, "bob", **auto, assignors=(assignor,)) as group:
        with pytest.raises(ConfigError, match="classic protocol"):
            await group.run(pattern, handler)
        assert handler.calls == []
        async with running(group.run("orders", handler)) as run:
            await handler.until("setup")
            with pytest.raises(ConfigError, match="classic protocol"):
                group.set_topics(pattern)
            await env.produce(1, [0])
            await handler.until("done 0@0")
            assert not run.done()
        # before a member has joined its protocol is not known
        held = env.cluster.faults.on("JoinGroup").hold()
        async with running(group.run("orders", handler)) as run:
            await held.wait_hit()
            group.set_topics(pattern)
            held.release()
            with pytest.raises(ConfigError, match="classic protocol"):
                await run
    assert caplog.messages == []


@pytest.mark.parametrize("seed", long_family(range(40)))
async def test_random_topics_and_members(env: VirtualEnvironment, seed: int) -> None:
    """Topics are created and extended while members join and leave: every record is handled once, and in order."""
    rng = random.Random(seed)
    counts: dict[str, int] = {}
    handled: dict[tuple[str, int], list[int]] = {}

    class Notes(WorkHandler):
        async def consume_claim(self, _session: Session, claim: Claim) -> None:
            async for record in claim:
                handled.setdefault(claim.tp, []).append(record.offset)
                claim.mark(record)
                self.env.bell.ring()

    async def join(stack: contextlib.AsyncExitStack, number: int) -> ConsumerGroup:
        group = await stack.enter_async_context(member(env, f"m{number}", metadata_refresh_interval=600.0))
        topics = SubscriptionPattern(rng.choice(["t-.*", "t-[0-9]+", "(t|u)-.*"]))
        await stack.enter_async_context(running(group.run(topics, Notes(env))))
        return group

    def is_done() -> bool:
        return all(
            handled.get(tp, []) == list(range(end)) for tp, end in env.produced.items() if tp.topic in counts
        )

    async with contextlib.AsyncExitStack() as stack:
        groups = [await join(stack, 0)]
        for step in range(12):
            match rng.choice(["create", "create", "extend", "join", "leave", "wait"]):
                case "create":
                    counts[f"t-{step}"] = rng.randint(1, 3)
                    await env.create_topic(f"t-{step}", counts[f"t-{step}"])
                    await env.create_topic(f"other-{step}", 1)
                case "extend" if counts:
                    topic = rng.choice(sorted(counts))
                    counts[topic] += 1
                    env.cluster.create_partitions(topic, counts[topic])
                case "join" if len(groups) < 4:
                    groups.append(await join(stack, step + 1))
                case "leave" if len(groups) > 1:
                    await groups.pop(rng.randrange(len(groups))).aclose()
            for topic, count in counts.items():
                await env.produce(1, range(count), topic)
            await asyncio.sleep(rng.choice([0.0, 0.1, 1.0, 5.0]))
        await env.bell.until(is_done, f"all of {dict(env.produced)} in {handled}", env.limit)
        seen = {topic for names in requested(env, "m0") if names for topic in names if isinstance(topic, str)}
        assert not any(name.startswith("other-") for name in seen)
