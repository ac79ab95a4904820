"""Changes of topics during a session: set_topics(), patterns, deleted, recreated and extended topics."""

from __future__ import annotations

import asyncio
import re

import pytest

from asyncgroup import BrokerError, Claim, ClosedError, ConfigError, ConsumerGroup, ErrorCode, Session
from asyncgroup.errors import UsageError
from asyncgroup.wire import messages as m
from tests.scenario.support import SessionEndHook, WorkHandler, group_requests, member, now, running
from tests.scenario.three_protocols import in_each_protocol
from tests.stories.virtual import VirtualEnvironment


class TopicHandler(WorkHandler):
    """A handler that records topics and marks the records that it reads."""

    async def on_assigned(self, session: Session, partitions) -> None:
        self.note("assigned " + ",".join(map(str, partitions)))

    async def consume_claim(self, session: Session, claim: Claim) -> None:
        async for record in claim:
            claim.mark(record)
            self.note(f"{claim.tp}@{record.offset}")


async def narrow(env: VirtualEnvironment, *names: str, partitions: int = 1) -> None:
    for name in names:
        await env.create_topic(name, partitions)


async def assigned(env: VirtualEnvironment, group: ConsumerGroup, *partitions: str) -> None:
    """Wait until the member has exactly these partitions, in this session or another."""

    def has_them() -> bool:
        session = group.session
        return session is not None and [str(tp) for tp in session.partitions] == list(partitions)

    await env.bell.until(has_them, f"partitions {partitions}", env.limit)


async def started(env: VirtualEnvironment, group: ConsumerGroup, *partitions: str) -> None:
    """Wait until the member has exactly these partitions, and reads all of them."""
    await assigned(env, group, *partitions)
    await env.bell.until(
        lambda: group.session is not None and len(group.session.claims) == len(partitions),
        "claims",
        env.limit,
    )


# -- set_topics() -------------------------------------------------------------------------------------------------------


@in_each_protocol
async def test_set_topics_during_run(env: VirtualEnvironment):
    """The member keeps its id, its marks are committed, and it continues with the new topics: eager in another session."""
    await narrow(env, "a", "b")
    handler, ends = TopicHandler(env), SessionEndHook()
    await env.produce(3, [0], "a")
    await env.produce(3, [0], "b")
    async with (
        member(env, hooks=(ends,), auto_commit_interval=3000.0) as group,
        running(group.run("a", handler)) as run,
    ):
        await handler.until("a-0@2")
        group.set_topics(["a"])
        assert handler.sessions[0].cause is None, "the same topics"
        before, member_id = len(group_requests(env)), handler.sessions[0].member_id
        group.set_topics(["b"])
        assert handler.sessions[0].ended is not env.sessions_last
        await handler.until("b-0@2")
        if not env.sessions_last:
            assert group_requests(env)[before:] == [
                "OffsetCommit",
                "JoinGroup",
                "SyncGroup with the plan",
                "OffsetFetch",
            ]
        assert handler.sessions[-1].member_id == member_id
        assert not run.done()
        group.set_topics(re.compile("[ab]"))
        await assigned(env, group, "a-0", "b-0")
        await env.produce(1, [0], "a")
        await handler.until("a-0@3")
        assert handler.calls.count("a-0@0") == 1, "it was committed"
        assert ends.names == ([] if env.sessions_last else ["TopicsChanged"] * 2)


@in_each_protocol
async def test_set_topics_during_consume(env: VirtualEnvironment):
    """consume() returns if the session ends; the next call uses its own topics."""
    await narrow(env, "a", "b")
    handler, ends = TopicHandler(env), SessionEndHook()
    async with member(env, hooks=(ends,)) as group:
        async with running(group.consume("a", handler)) as consuming:
            await handler.until("assigned a-0")
            group.set_topics("b")
            if env.sessions_last:
                await assigned(env, group, "b-0")
                assert not consuming.done()
                consuming.cancel()
            await asyncio.wait([consuming])
        assert ends.names == ["CallerCancelled" if env.sessions_last else "TopicsChanged"]
        async with running(group.consume(["a", "b"], handler)):
            await assigned(env, group, "a-0", "b-0")


@in_each_protocol
async def test_set_topics_while_joining(env: VirtualEnvironment):
    """The pending join is completed; a session that it ends does not call the handler."""
    await narrow(env, "a", "b")
    handler = TopicHandler(env)
    api, nth = ("JoinGroup", 2) if env.has_leader else ("ConsumerGroupHeartbeat", 1)
    held = env.cluster.faults.on(api, nth=nth).hold()
    async with member(env) as group, running(group.run("a", handler)):
        await held.wait_hit()
        group.set_topics("b")
        held.release()
        await handler.until("assigned b-0")
        assert "assigned a-0" not in handler.calls


@in_each_protocol
async def test_set_topics_to_unknown_topics(env: VirtualEnvironment):
    handler = TopicHandler(env)
    async with member(env) as group:
        async with running(group.run("orders", handler)) as run:
            await handler.until("setup")
            group.set_topics("nowhere")
            with pytest.raises(BrokerError, match="'nowhere'"):
                await run


@in_each_protocol
async def test_set_topics_needs_a_running_consume(env: VirtualEnvironment):
    handler = TopicHandler(env)
    async with member(env) as group:
        with pytest.raises(UsageError, match="consumes nothing"):
            group.set_topics("orders")
        async with running(group.run("orders", handler)):
            await handler.until("setup")
            with pytest.raises(ConfigError, match="it is empty"):
                group.set_topics([])
            assert not handler.sessions[0].ended
    with pytest.raises(ClosedError):
        group.set_topics("orders")


# -- patterns -----------------------------------------------------------------------------------------------------------


@in_each_protocol
async def test_a_pattern_notices_new_and_deleted_topics(env: VirtualEnvironment):
    handler, ends = TopicHandler(env), SessionEndHook()
    await narrow(env, "log-a")
    async with (
        member(env, hooks=(ends,), auto_offset_reset="latest") as group,
        running(group.run(re.compile("log-.*"), handler)),
    ):
        await handler.until("assigned log-a-0")
        await narrow(env, "log-b", "other")
        await env.produce(2, [0], "log-b")  # before any member knows the topic
        created = now()
        await assigned(env, group, "log-a-0", "log-b-0")
        assert now() - created <= env.refresh_interval + 0.1
        # the topic was created during the membership, so it is read from the start despite `latest`
        await handler.until("log-b-0@1")
        assert ends.names == ([] if env.sessions_last else ["TopicsChanged"])
        assert all("matches log-b" in str(cause) for cause in ends.causes)
        env.cluster.delete_topic("log-a")
        await assigned(env, group, "log-b-0")


async def test_a_pattern_notices_new_topics_between_calls_of_consume(env: VirtualEnvironment):
    """The group object remembers the topics over several calls."""
    handler = TopicHandler(env)
    await narrow(env, "log-a")
    async with member(env, auto_offset_reset="latest") as group:
        async with running(group.consume(re.compile("log-.*"), handler)) as consuming:
            await handler.until("assigned log-a-0")
            await narrow(env, "log-b")
            await env.produce(2, [0], "log-b")
            await consuming
        async with running(group.consume(re.compile("log-.*"), handler)):
            await handler.until("log-b-0@1")


@in_each_protocol
async def test_a_pattern_that_matches_nothing_waits_for_topics(env: VirtualEnvironment):
    handler = TopicHandler(env)
    async with member(env) as group, running(group.run(re.compile("log-.*"), handler)):
        await handler.until("assigned ")
        await asyncio.sleep(3 * env.session_timeout)
        assert handler.calls == ["setup", "assigned "]
        assert group.health().waits_for == "a topic that its pattern matches"
        assert group.health().is_healthy
        await narrow(env, "log-a")
        await env.produce(1, [0], "log-a")
        await handler.until("log-a-0@0")


@in_each_protocol
async def test_each_member_watches_for_its_own_pattern(env: VirtualEnvironment):
    """Bob is not the leader; he finds the new topic in his own metadata and makes the group rebalance."""
    bob_script = TopicHandler(env)
    await narrow(env, "log-a")
    ann = await env.member("ann")
    await env.settled(ann)
    async with member(env, "bob") as bob, running(bob.run(re.compile("log-.*"), bob_script)):
        await bob_script.until("assigned log-a-0")
        await narrow(env, "log-b")
        await assigned(env, bob, "log-a-0", "log-b-0")
        await bob.aclose()


# -- deleted, recreated -------------------------------------------------------------------------------------------------


@in_each_protocol
async def test_deleted_and_recreated(env: VirtualEnvironment):
    """Within twice the session timeout the group reads the new topic from its start."""
    ann = await env.member("ann", auto_offset_reset="latest", metadata_refresh_interval=600.0)
    bob = await env.member("bob", auto_offset_reset="latest", metadata_refresh_interval=600.0)
    await env.settled(ann, bob)
    await env.produce(5, range(4))
    await env.all_handled()
    await env.all_committed()
    env.cluster.delete_topic("orders")
    await asyncio.sleep(4.0)
    for each in (ann, bob):
        assert "topic 'orders'" in str(each.group.health())
        assert each.group.health().waits_for == "topic 'orders' to exist"
        assert not each.group.health().is_healthy
    env.cluster.create_topic("orders", 4)
    began = now()
    _forget(env, ann, bob)
    await env.produce(3, range(4))
    await env.all_handled()
    assert now() - began < 2 * env.session_timeout
    await env.all_committed()
    await env.settled(ann, bob)
    await env.bell.until(
        lambda: ann.group.health().is_healthy and bob.group.health().is_healthy, "well again", env.limit
    )


@in_each_protocol
async def test_recreated_at_once(env: VirtualEnvironment):
    """No metadata response misses the topic: the change is detected by its id."""
    ann = await env.member("ann", auto_offset_reset="latest", metadata_refresh_interval=600.0)
    await env.settled(ann)
    await env.produce(5, range(4))
    await env.all_handled()
    await env.all_committed()
    env.cluster.delete_topic("orders")
    env.cluster.create_topic("orders", 4)
    began = now()
    _forget(env, ann)
    await env.produce(3, range(4))
    await env.all_handled()
    assert now() - began < 2 * env.session_timeout
    await env.all_committed()


@in_each_protocol
async def test_other_topics_are_read_while_one_is_deleted(env: VirtualEnvironment):
    await narrow(env, "a", "b")
    handler = TopicHandler(env)
    async with (
        member(env, metadata_refresh_interval=600.0) as group,
        running(group.run(["a", "b"], handler)) as run,
    ):
        await handler.until("assigned a-0,b-0")
        env.cluster.delete_topic("a")
        await assigned(env, group, "b-0")
        await env.produce(1, [0], "b")
        await handler.until("b-0@0")
        health = group.health()
        assert not health.is_healthy
        assert "topic 'a' does not exist" in str(health)
        env.cluster.create_topic("a", 2)
        await assigned(env, group, "a-0", "a-1", "b-0")
        assert not run.done()
        assert group.health().is_healthy


@in_each_protocol
async def test_deleted_for_long(env: VirtualEnvironment, caplog: pytest.LogCaptureFixture):
    """The other topic is read, however long it takes; the deleted one is read again when it is back."""
    await narrow(env, "a", "b")
    handler = TopicHandler(env)
    async with member(env, metadata_refresh_interval=600.0, auto_offset_reset="latest") as group:
        async with running(group.run(["a", "b"], handler)) as run:
            await handler.until("assigned a-0,b-0")
            env.cluster.delete_topic("a")
            await asyncio.sleep(10 * env.session_timeout)
            assert not run.done()
            await env.produce(1, [0], "b")
            await handler.until("b-0@0")
            assert [claim.topic for claim in group.session.claims] == ["b"]
            (problem,) = group.health().problems
            assert problem.startswith("topic 'a' does not exist, missing for 9")
            warnings = [r.getMessage() for r in caplog.records if "topic 'a'" in r.getMessage()]
            assert warnings == [
                "group g: topic 'a' does not exist any more, its claims end; it is read from its start once it exists"
            ]
            env.cluster.create_topic("a", 1)
            await env.produce(1, [0], "a")
            await handler.until("a-0@0")
            assert group.health().is_healthy
            env.cluster.delete_topic("a")
            await assigned(env, group, "b-0")
        async with running(group.run(["a", "b"], handler)) as run:
            await assigned(env, group, "b-0")
            assert not run.done(), "this group object has seen the topic"


@in_each_protocol
async def test_members_without_a_claim_of_a_deleted_topic_know_it_too(env: VirtualEnvironment):
    """Long before their metadata is due."""
    await narrow(env, "a", "b")
    config = {"metadata_refresh_interval": 3600.0}
    async with (
        member(env, "ann", **config) as ann,
        running(ann.run(["a", "b"], TopicHandler(env))),
        member(env, "bob", host="10.2.0.2", **config) as bob,
        running(bob.run(["a", "b"], TopicHandler(env))),
    ):
        await asyncio.sleep(10 * env.session_timeout)
        assert (
            len([claim for group in (ann, bob) for claim in group.session.claims if claim.topic == "a"]) == 1
        )
        env.cluster.delete_topic("a")
        await asyncio.sleep(2 * env.session_timeout)
        for group in (ann, bob):
            (problem,) = group.health().problems
            assert problem.startswith("topic 'a' does not exist, missing for")
        env.cluster.create_topic("a", 1)
        await asyncio.sleep(2 * env.session_timeout)
        assert ann.health().is_healthy
        assert bob.health().is_healthy


@in_each_protocol
async def test_a_topic_that_cannot_be_described_any_more(
    env: VirtualEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    """The other topic is read over the next rebalances; the denied one is read on where it was when it is allowed again."""

    def deny(response: m.MetadataResponse) -> None:
        for topic in response.topics:
            if topic.name == "a":
                topic.error_code, topic.partitions = ErrorCode.TOPIC_AUTHORIZATION_FAILED, []

    await narrow(env, "a", "b", "c")
    handler = TopicHandler(env)
    async with (
        member(env, "ann", auto_offset_reset="latest", auto_commit=False) as group,
        running(group.run(["a", "b"], handler)) as run,
    ):
        await handler.until("assigned a-0,b-0")
        await asyncio.sleep(5.0)
        denied = env.cluster.faults.on("Metadata", times=None, client_id="ann").mutate(deny)
        group.set_topics(["a", "b", "c"])
        await started(env, group, "b-0", "c-0")
        await env.produce(1, [0], "b")
        await handler.until("b-0@0")
        await env.produce(1, [0], "a")
        (problem,) = group.health().problems
        assert problem.startswith("topic 'a' cannot be used for "), problem
        assert "TOPIC_AUTHORIZATION_FAILED" in problem
        warnings = [r.getMessage() for r in caplog.records if "topic 'a'" in r.getMessage()]
        assert warnings == [
            "group g: topic 'a' has the error TOPIC_AUTHORIZATION_FAILED, its claims end; it is read once that has ended"
        ]
        denied.cancel()
        await started(env, group, "a-0", "b-0", "c-0")
        await env.produce(1, [0], "a")
        await handler.until("a-0@1")
        assert not run.done()
        assert group.health().is_healthy
        assert "a-0@0" not in handler.calls, (
            "not from the start: as at the start of any member without a commit"
        )


@in_each_protocol
async def test_a_denied_topic_is_named_after_any_rebalance(env: VirtualEnvironment):
    """The leader of the group cannot assign the topic, and no member reads it until it is allowed again."""

    def deny(response: m.MetadataResponse) -> None:
        for topic in response.topics:
            if topic.name == "a":
                topic.error_code, topic.partitions = ErrorCode.TOPIC_AUTHORIZATION_FAILED, []

    await narrow(env, "a")
    await narrow(env, "b", partitions=2)
    handler, config = TopicHandler(env), {"metadata_refresh_interval": 600.0}
    async with member(env, "ann", **config) as group, running(group.run(["a", "b"], handler)):
        await handler.until("assigned a-0,b-0,b-1")
        denied = env.cluster.faults.on("Metadata", times=None, client_id="ann").mutate(deny)
        async with (
            member(env, "bob", host="10.2.0.2", **config) as other,
            running(other.run("b", TopicHandler(env))),
        ):
            await env.bell.until(lambda: bool(other.session and other.session.claims), "bob reads", env.limit)
            await asyncio.sleep(3 * env.session_timeout)
            problems = [text for text in group.health().problems if "topic 'a' cannot be used" in text]
            reads = group.session is not None and "a" in group.session.assignment
            assert problems or reads, "a broker that assigns still knows the topic"
        denied.cancel()
        await started(env, group, "a-0", "b-0", "b-1")
        assert group.health().is_healthy


@in_each_protocol
async def test_brokers_that_disagree_about_a_topic(ends: SessionEndHook, env: VirtualEnvironment):
    """Rebalances for it come less and less often."""
    looks = 0

    def forget(response: m.MetadataResponse) -> None:
        nonlocal looks
        looks += 1
        for topic in response.topics:
            if topic.name == "a" and looks // 2 % 2:
                topic.error_code, topic.partitions = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []

    await narrow(env, "a", "b")
    async with member(env, "ann", hooks=(ends,)) as group, running(group.run(["a", "b"], TopicHandler(env))):
        await started(env, group, "a-0", "b-0")
        flapping = env.cluster.faults.on("Metadata", times=None, client_id="ann").mutate(forget)
        await asyncio.sleep(300.0)
        changes = len(env.cluster.history.of("JoinGroup")) + len(
            [e for e in env.cluster.history.of("ConsumerGroupHeartbeat") if e.request.subscribed_topic_names]
        )
        assert changes < 40, changes
        flapping.cancel()
        await started(env, group, "a-0", "b-0")


@in_each_protocol
async def test_waiting_for_topics_that_never_existed(env: VirtualEnvironment):
    """With missing_topics="wait" a program may start before its topics; it then reads all of their records."""
    await narrow(env, "a")
    handler, ends = TopicHandler(env), SessionEndHook()
    options = {"missing_topics": "wait", "auto_offset_reset": "error", "metadata_refresh_interval": 600.0}
    env.cluster.commit("g", {("a", 0): 0})
    async with member(env, hooks=(ends,), **options) as group, running(group.run(["a", "b", "c"], handler)):
        await env.produce(1, [0], "a")
        await handler.until("a-0@0")
        await asyncio.sleep(5 * env.session_timeout)
        assert len(group.health().problems) == 2
        for topic in ("b", "c"):
            await narrow(env, topic)
            await env.produce(2, [0], topic)
            await handler.until(f"{topic}-0@1")
        assert group.health().is_healthy
        assert ends.names == ([] if env.sessions_last else ["PartitionsChanged"] * 2)


@in_each_protocol
async def test_waiting_for_the_only_topic(env: VirtualEnvironment):
    handler = TopicHandler(env)
    async with member(env, missing_topics="wait") as group, running(group.run("later", handler)) as run:
        await asyncio.sleep(5 * env.session_timeout)
        assert not run.done()
        health = group.health()
        assert (health.state, health.waits_for) == ("stable", "topic 'later' to exist")
        await narrow(env, "later")
        await env.produce(1, [0], "later")
        await handler.until("later-0@0")


@in_each_protocol
async def test_a_topic_that_never_existed(env: VirtualEnvironment):
    handler = TopicHandler(env)
    async with member(env) as group:
        began = now()
        with pytest.raises(BrokerError, match="'nowhere'"):
            await group.run(["nowhere", "orders"], handler)
        assert now() - began < env.session_timeout
    assert handler.calls == []


def _forget(env: VirtualEnvironment, *members) -> None:
    env.produced.clear()
    for each in members:
        each.log.handled.clear()


# -- growth -------------------------------------------------------------------------------------------------------------


@in_each_protocol
@pytest.mark.parametrize("policy", ["latest", "error"])
async def test_partitions_added_later_start_at_the_beginning(env: VirtualEnvironment, policy: str):
    """The reset policy does not apply to them: their records are all newer than the subscription."""
    await narrow(env, "a", partitions=2)
    await env.produce(3, [0, 1], "a")
    if policy == "error":
        async with member(env, "first") as group, running(group.run("a", first := TopicHandler(env))):
            await first.until("a-0@2")
            await first.until("a-1@2")
    handler = TopicHandler(env)
    async with member(env, auto_offset_reset=policy) as group, running(group.run("a", handler)):
        await handler.until("assigned a-0,a-1")
        await asyncio.sleep(2.0)
        env.cluster.create_partitions("a", 3)
        await env.produce(3, [2], "a")  # before any member knows them
        await handler.until("a-2@2")
        assert [call for call in handler.calls if "@" in call] == ["a-2@0", "a-2@1", "a-2@2"]


@in_each_protocol
async def test_partitions_are_added_to_the_topic_of_another_member(env: VirtualEnvironment):
    """The leader, or the coordinator with the consumer protocol, watches the topics of all members."""
    await narrow(env, "a")
    ann = await env.member("ann")
    await env.settled(ann)
    bob = await env.member("bob", ["a"])
    assert (await env.settled(ann, bob)).leader == env.leader("ann")
    env.cluster.create_partitions("a", 2)

    def is_widened() -> bool:
        return bob.session is not None and bob.session.assignment == {"a": [0, 1]}

    await env.bell.until(is_widened, "two partitions assigned to bob", env.limit)
    ended = [session.cause for session in ann.log.sessions if session.cause is not None]
    assert ended[-1:] == ([] if env.sessions_last else ["PartitionsChanged"])


# -- temporarily unknown -------------------------------------------------------------------------------------------------


@in_each_protocol
async def test_a_topic_that_some_broker_does_not_know_for_a_while(env: VirtualEnvironment):
    """The start offsets of its partitions are looked up again, for as long as it takes."""
    handler = TopicHandler(env)
    async with member(env) as group, running(group.run("orders", handler)) as run:
        await handler.until("setup")
        fault = env.cluster.faults.on("ListOffsets", times=None).error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        bob = await env.member("bob")
        await fault.wait_hit()
        await asyncio.sleep(5.0)
        assert not run.done()
        env.cluster.faults.clear()
        await handler.until("revoked [2, 3]" if env.sessions_last else "assigned orders-0,orders-1")
        # a session that lasts has not looked up its partitions again
        assert ("UNKNOWN_TOPIC_OR_PARTITION" in str(group.health().errors)) is not env.sessions_last
        env.cluster.faults.on("ListOffsets", times=None).error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        await bob.leave()
        await asyncio.sleep(3 * env.session_timeout)
        assert not run.done()
        assert "cannot start for " in str(group.health())
        env.cluster.faults.clear()
        await env.bell.until(
            lambda: group.session is not None and len(group.session.claims) == 4, "all claims", env.limit
        )
        assert group.health().is_healthy
