"""`health()`: the member's state, and a readable description of each problem.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from asyncgroup import (
    Claim,
    ConsumerConfig,
    ConsumerGroup,
    ErrorCode,
    Health,
    Session,
    SubscriptionPattern,
    TopicPartition,
)
from tests.scenario.support import Gate, WorkHandler, member, running, stubborn
from tests.stories.environment import CONSUMER
from tests.stories.virtual import VirtualEnvironment


async def test_before_and_after_consuming(env: VirtualEnvironment):
    """A health check may run at any time."""
    group = ConsumerGroup(env.bootstrap_servers, "g", ConsumerConfig(client_id="ann"))
    health = group.health()
    assert (health.state, health.is_healthy, health.waits_for) == ("not consuming", False, None)
    assert health.problems == ("nothing consumes: neither run() nor consume() is running",)
    assert (health.last_heartbeat, health.last_fetch, health.member_id) == (None, None, "")
    assert str(health).startswith("g: not consuming")
    assert (health.state_age, repr(group)) == (0.0, "<ConsumerGroup 'g': not open, no session>")
    await asyncio.sleep(100.0)
    async with group:
        health = group.health()
        assert (health.state, health.state_age) == ("not consuming", pytest.approx(0.0, abs=0.1))
        assert repr(group) == "<ConsumerGroup 'g': open, no session>"
    assert repr(group) == "<ConsumerGroup 'g': closed, no session>"
    assert group.health().state == "closed"
    assert not group.health().is_healthy
    assert group.health().problems == ("the group is closed",)


async def test_a_stable_member(handler: WorkHandler, env: VirtualEnvironment):
    await env.produce(5, [0, 1])
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("done 0@4")
        await handler.until("done 1@4")
        await asyncio.sleep(4.0)
        group.pause([("orders", 2)])
        health = group.health()
        assert isinstance(health, Health)
        assert health.is_healthy
        assert (health.state, health.waits_for, health.problems, health.errors) == ("stable", None, (), ())
        assert health.member_id == handler.sessions[0].member_id
        assert health.generation_id == 1
        assert health.last_heartbeat == pytest.approx(1.0, abs=0.1)
        assert health.last_fetch is not None
        assert health.last_fetch <= 0.6
        first = health.claims[0]
        assert (first.tp, first.position, first.next_mark) == (TopicPartition("orders", 0), 5, 5)
        assert (first.high_watermark, first.lag) == (5, 0)
        assert health.paused == (TopicPartition("orders", 2),)
        assert "paused orders-2" in str(health)
        assert "\n" not in repr(health)
        values = json.loads(json.dumps(health.as_dict()))
        assert values["claims"][0]["lag"] == 0
        assert (values["state"], values["is_healthy"], values["paused"]) == ("stable", True, ["orders-2"])
        with pytest.raises(AttributeError):
            health.state = "ill"  # type: ignore[misc]
    assert health.state == "stable", "a health value does not change later"


async def test_without_partitions(handler: WorkHandler, env: VirtualEnvironment):
    await env.create_topic("narrow", 1)
    await env.settled(await env.member("bob", ["narrow"]))
    async with member(env, "zoe") as group, running(group.run("narrow", handler)):
        await handler.until("assigned []")
        await asyncio.sleep(0.1)
        health = group.health()
        assert health.is_healthy
        assert health.waits_for == "a partition: other members own all of them"


async def test_lag_and_stalls(env: VirtualEnvironment):
    gate = Gate(0, 2)
    handler = WorkHandler(env, gate)
    await env.produce(50, [0])
    async with member(env, max_partition_fetch_bytes=400, buffer_bytes=400) as group:
        async with running(group.run("orders", handler)):
            await gate.reached.wait()
            await asyncio.sleep(2.0)
            health = group.health()
            assert health.stalled == (TopicPartition("orders", 0),)
            assert health.lag == 47
            assert "stalled orders-0" in str(health)
            assert health.is_healthy, "a slow handler is not a problem of the client"
            gate.open.set()


# -- states while joining ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api", "nth", "state", "waits"),
    [
        ("JoinGroup", 2, "joining", "the group to complete the join: 4.0 s"),
        ("SyncGroup", 1, "syncing", "the group leader to send the assignment: 4.0 s"),
        ("OffsetFetch", 1, "starting", "its start offsets: 4.0 s"),
        ("FindCoordinator", 1, "looking for the coordinator", "the coordinator of group 'g': 4.0 s"),
    ],
)
async def test_what_a_joining_member_waits_for(
    handler: WorkHandler, env: VirtualEnvironment, api: str, nth: int, state: str, waits: str
):
    times = None if api == "FindCoordinator" else 1
    held = env.cluster.faults.on(api, nth=nth, times=times, client_id="ann").hold()
    async with member(env) as group, running(group.run("orders", handler)):
        await held.wait_hit()
        await asyncio.sleep(4.0)
        health = group.health()
        assert health.state == state
        assert health.waits_for == waits
        assert f"waits for {waits}" in str(health)
        assert health.is_healthy, "this is no problem yet"
        held.release()
        await handler.until("claim 3@0")
        assert group.health().state == "stable"


async def test_a_long_join_is_healthy_within_the_rebalance_timeout(env: VirtualEnvironment):
    held = env.cluster.faults.on("JoinGroup", nth=2).hold()
    async with member(env, rebalance_timeout=40.0) as group, running(group.run("orders", WorkHandler(env))):
        await held.wait_hit()
        await asyncio.sleep(39.0)
        assert group.health().is_healthy
        held.release()


async def test_setup_and_cleanup_are_named(env: VirtualEnvironment):
    class Slow(WorkHandler):
        async def setup(self, session: Session) -> None:
            await super().setup(session)
            await asyncio.sleep(5.0)

        async def cleanup(self, session: Session) -> None:
            await super().cleanup(session)
            await asyncio.sleep(5.0)

    handler = Slow(env)
    async with member(env, close_timeout=100.0) as group, running(group.run("orders", handler)):
        await handler.until("setup")
        await asyncio.sleep(2.0)
        assert group.health().waits_for == "setup to end: 2.0 s"
        await handler.until("claim 3@0")
        closing = asyncio.ensure_future(group.aclose())
        await handler.until("cleanup")
        await asyncio.sleep(3.0)
        assert re.fullmatch(r"cleanup to end: 3\.0 s of \d+\.\d s", group.health().waits_for or "")
        await closing


async def test_a_handler_that_is_waited_for_is_named(env: VirtualEnvironment):
    gate = Gate(3, 0)
    handler = WorkHandler(env, gate)
    await env.produce(1, [3])
    async with member(env, rebalance_timeout=60.0) as group, running(group.run("orders", handler)):
        await gate.reached.wait()
        bob = await env.member("bob")
        await env.bell.until(lambda: handler.sessions[0].ended, "the rebalance", env.limit)
        await asyncio.sleep(4.1)
        health = group.health()
        assert (health.state, health.is_healthy) == ("draining", True)
        assert health.waits_for == "handler of orders-3 to end: 4.1 s of 52.0 s"
        gate.open.set()
        await bob.leave()


async def test_a_handler_that_swallows_its_cancellation_is_named(env: VirtualEnvironment):
    handler = WorkHandler(env, stubborn(60.0))
    await env.produce(1, [2])
    async with member(env, close_timeout=10.0) as group, running(group.run("orders", handler)):
        await handler.until("record 2@0")
        closing = asyncio.ensure_future(group.aclose())
        await asyncio.sleep(20.0)
        health = group.health()
        assert not health.is_healthy
        assert health.problems == ("handler of orders-2 still running 12.0 s after cancellation",)
        await closing


# -- problems ------------------------------------------------------------------------------------------------------------


async def test_no_coordinator(handler: WorkHandler, env: VirtualEnvironment):
    fault = env.cluster.faults.on("FindCoordinator", times=None).error(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    async with member(env) as group, running(group.run("orders", handler)):
        await fault.wait_hit(3)
        await asyncio.sleep(0.01)
        health = group.health()
        assert not health.is_healthy
        assert "coordinator of 'g': COORDINATOR_NOT_AVAILABLE" in health.problems[0]
        assert "COORDINATOR_NOT_AVAILABLE" in str(health)
        assert health.errors[0].count == 3
        assert "3 times" in str(health)
        env.cluster.faults.clear()
        await handler.until("claim 3@0")
        assert group.health().is_healthy
        assert group.health().errors, "the session's values are kept"


async def test_brokers_that_refuse_connections(handler: WorkHandler, env: VirtualEnvironment):
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        for node_id in (1, 2, 3):
            await env.cluster.stop_node(node_id)
        await asyncio.sleep(4.0)
        health = group.health()
        assert not health.is_healthy
        text = str(health)
        assert re.search(
            r"wrong: heartbeats fail, the last successful one was \d\.\d s ago: .*10\.0\.0\.1:", text
        )
        assert re.search(r"wrong: orders-.* cannot be fetched for .*: .*10\.0\.0\.1:", text)
        assert "refused" in text.lower()
        assert health.waits_for is not None
        assert "brokers" in health.waits_for
        await asyncio.sleep(10.0)
        later = group.health()
        assert not later.is_healthy
        assert "the membership was lost: " in str(later)
        for node_id in (1, 2, 3):
            await env.cluster.start_node(node_id)
        await env.bell.until(lambda: group.health().is_healthy, "well again", env.limit)


async def test_brokers_that_are_silent(handler: WorkHandler, env: VirtualEnvironment):
    """No request has failed yet, but none is answered."""
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        await asyncio.sleep(1.0)
        env.network.blackhole("10.2.0.1")
        await asyncio.sleep(3.5)
        health = group.health()
        assert not health.is_healthy
        assert re.search(r"no response to a fetch from node \d for 4\.\d s", str(health))
        await asyncio.sleep(3.0)
        assert "heartbeat" in str(group.health())
        env.network.cut("10.2.0.1")
        env.network.heal("10.2.0.1")
        await env.bell.until(lambda: group.health().is_healthy, "well again", env.limit)


async def test_one_silent_broker_of_three(handler: WorkHandler, env: VirtualEnvironment):
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        coordinator = env.cluster.coordinator("g")
        silent = next(n for n in (1, 2, 3) if n != coordinator)
        await asyncio.sleep(1.0)
        fault = env.cluster.faults.on("Fetch", node=silent, times=None).hold()
        await fault.wait_hit()
        await asyncio.sleep(3.0)
        health = group.health()
        assert not health.is_healthy
        assert re.search(rf"no response to a fetch from node {silent} for [23]\.\d s", str(health))
        fault.release()
        env.cluster.faults.clear()
        await env.bell.until(lambda: group.health().is_healthy, "well again", env.limit)


async def test_a_partition_that_is_refused(handler: WorkHandler, env: VirtualEnvironment):
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        fault = env.cluster.faults.on("Fetch", topic="orders", times=None).error(
            ErrorCode.KAFKA_STORAGE_ERROR
        )
        await fault.wait_hit(6)
        await asyncio.sleep(0.05)
        health = group.health()
        assert not health.is_healthy
        assert re.search(r"orders-\d.* cannot be fetched for .*: .*KAFKA_STORAGE_ERROR", str(health))
        env.cluster.faults.clear()
        await env.bell.until(lambda: group.health().is_healthy, "well again", env.limit)


async def test_many_partitions_without_a_leader(env: VirtualEnvironment, caplog: pytest.LogCaptureFixture):
    """The partitions are one problem, with a reason and a duration, and few log lines; the other partitions are read."""
    env.cluster.create_topic("wide", 60, replication_factor=1)
    handler = WorkHandler(env)
    async with member(env) as group, running(group.run("wide", handler)):
        await env.bell.until(
            lambda: group.session is not None and len(group.session.claims) == 60, "claims", env.limit
        )
        down = next(node for node in (1, 2, 3) if node != env.cluster.coordinator("g"))
        await env.cluster.stop_node(down)
        await asyncio.sleep(30.0)
        (problem,) = group.health().problems
        found = re.fullmatch(
            r"wide-\d+, wide-\d+, wide-\d+ and 17 others cannot be fetched for (\d+).\d s: (.*)", problem
        )
        assert found, problem
        assert 25 <= int(found[1]) <= 30
        assert "LEADER_NOT_AVAILABLE" in found[2]
        warnings = [r.getMessage() for r in caplog.records if "failures in a row" in r.getMessage()]
        assert 1 <= len(warnings) <= 6, warnings
        assert any("the same kind of error: " in text and "and 16 more" in text for text in warnings)
        await env.cluster.start_node(down)
        await env.bell.until(lambda: group.health().is_healthy, "well again", env.limit)


async def test_commits_that_fail(handler: WorkHandler, env: VirtualEnvironment):
    async with member(env, commit_retry_max=0) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        env.cluster.faults.on("OffsetCommit", times=None).error(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        await env.produce(1, [0])
        await handler.until("done 0@0")
        await asyncio.sleep(3.0)
        health = group.health()
        assert not health.is_healthy
        assert re.search(r"wrong: commits fail: .*orders-0.*COORDINATOR_LOAD_IN_PROGRESS", str(health))
        env.cluster.faults.clear()
        await asyncio.sleep(2.0)
        assert group.health().is_healthy


async def test_heartbeats_that_fail(handler: WorkHandler, env: VirtualEnvironment):
    async with member(env) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        fault = env.cluster.faults.on("Heartbeat", times=None).error(ErrorCode.NOT_COORDINATOR)
        await fault.wait_hit(3)
        await asyncio.sleep(0.05)
        assert re.search(
            r"heartbeats fail, the last successful one was 3\.\d s ago: .*NOT_COORDINATOR",
            str(group.health()),
        )
        env.cluster.faults.clear()
        await env.bell.until(lambda: group.health().is_healthy, "well again", env.limit)
        assert group.health().last_heartbeat == pytest.approx(0.0, abs=0.5)


async def test_between_sessions(env: VirtualEnvironment):
    """The state during the pause before the next join names the reason."""

    class Returns(WorkHandler):
        async def consume_claim(self, session: Session, claim: Claim) -> None:
            self.note("returned")

    handler = Returns(env)
    async with member(env, retry_backoff=5.0, retry_backoff_max=5.0) as group:
        async with running(group.run("orders", handler)):
            await handler.until("cleanup")
            await asyncio.sleep(2.0)
            health = group.health()
            assert health.state == "waiting to join again"
            assert health.waits_for is not None
            assert health.waits_for.startswith("the backoff before it joins again: 2.0 s")


# -- at any time ---------------------------------------------------------------------------------------------------------


class HealthChecker:
    """A hook that calls health() at every event and checks the invariants of the value."""

    def __init__(self) -> None:
        self.group: ConsumerGroup | None = None
        self.states: set[str] = set()
        self.ills = 0

    def on_response(self, *_values: object) -> None:
        self._ask()

    on_request = on_heartbeat = on_commit = on_join = on_session_start = on_session_end = on_response
    on_disconnect = on_connect = on_metadata = on_fetch = on_response

    def _ask(self) -> None:
        if self.group is None:
            return
        health = self.group.health()
        self.states.add(health.state)
        self.ills += not health.is_healthy
        assert "\n" not in str(health)
        assert health.is_healthy is (not health.problems)
        assert not (health.is_healthy and health.state in IDLE)
        values = json.loads(json.dumps(health.as_dict()))
        assert len(values["claims"]) == len(health.claims)
        for age in (health.last_heartbeat, health.last_fetch, health.state_age):
            assert age is None or age >= 0.0


IDLE = ("closed", "not consuming", "leaving")


async def test_at_every_event_of_a_failing_member(env: VirtualEnvironment, caplog: pytest.LogCaptureFixture):
    """health() never raises in any state of the member, and is healthy again when the member is."""
    asks, handler = HealthChecker(), WorkHandler(env)
    async with member(env, hooks=(asks,)) as group, running(group.run("orders", handler)):
        asks.group = group
        await handler.until("claim 3@0")
        bob = await env.member("bob")
        await handler.until("assigned [0, 1]")
        await env.produce(5, range(4))
        await env.kill_node(env.cluster.coordinator("g"))
        await asyncio.sleep(5.0)
        env.network.blackhole("10.2.0.1")
        await asyncio.sleep(20.0)
        env.network.cut("10.2.0.1")
        env.network.heal("10.2.0.1")
        await handler.until("assigned [0, 1]", 2)
        env.cluster.delete_topic("orders")
        await asyncio.sleep(3.0)
        env.cluster.create_topic("orders", 4, 2)
        await env.bell.until(lambda: group.health().is_healthy and bob.session, "well again", env.limit)
        await bob.leave()
    assert asks.states >= {
        "looking for the coordinator",
        "joining",
        "syncing",
        "starting",
        "stable",
        "draining",
    }
    assert asks.ills > 0
    assert not [r for r in caplog.records if r.name == "asyncgroup.hooks"], "an exception in a hook is logged"


# -- the consumer protocol -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "protocol",
    [
        CONSUMER,
        {"group_protocol": "auto", "session_timeout": 8.0, "heartbeat_interval": 0.5},
    ],
    ids=["consumer", "auto"],
)
async def test_by_the_consumer_protocol_the_timeouts_are_those_of_the_group(protocol: dict[str, Any]) -> None:
    """The same holds with `auto`: the client's own timeouts count only for the classic protocol."""
    made = VirtualEnvironment.made(
        nodes=1, group_consumer_session_timeout=40.0, group_consumer_heartbeat_interval=4.0
    )
    async with made as env, member(env, **protocol) as group, running(group.run("orders", WorkHandler(env))):
        await env.bell.until(lambda: group.health().state == "stable", "stable", env.limit)
        await asyncio.sleep(15.0)
        env.network.blackhole("10.2.0.1")
        await asyncio.sleep(4.5)
        assert not re.search("heartbeat", str(group.health().problems)), "less than two intervals"
        await asyncio.sleep(20.5)
        health = group.health()
        assert health.state == "stable"
        assert not health.is_healthy
        assert health.waits_for is not None
        assert health.waits_for.endswith("the session ends after 40 s without a heartbeat response")
        assert re.search("heartbeats fail|no response to heartbeats", str(health.problems))
        await asyncio.sleep(25.0)
        assert group.health().state != "stable"


@pytest.mark.parametrize("group_protocol", ["consumer", "auto"])
async def test_by_the_consumer_protocol_a_deleted_topic_is_missing_beyond_the_timeout_of_the_group(
    group_protocol: str,
) -> None:
    made = VirtualEnvironment.made(nodes=1, group_consumer_session_timeout=40.0)
    protocol = {"group_protocol": group_protocol, "session_timeout": None, "heartbeat_interval": None}
    async with made as env, member(env, **protocol) as group:
        await env.create_topic("more", 1)
        async with running(group.run(["orders", "more"], handler := WorkHandler(env))) as run:
            await handler.until("setup")
            await asyncio.sleep(15.0)
            env.cluster.delete_topic("more")
            await asyncio.sleep(50.0)
            health = group.health()
            assert health.problems[0].startswith("topic 'more' does not exist, missing for ")
            assert (len(health.problems), health.waits_for) == (1, "topic 'more' to exist")
            assert not run.done()


async def test_a_member_without_partitions_of_a_pattern_that_the_broker_matches() -> None:
    async with VirtualEnvironment.made(nodes=1) as env, member(env, **CONSUMER) as group:
        pattern = SubscriptionPattern("nothing-.*")
        async with running(group.run(pattern, handler := WorkHandler(env))):
            await handler.until("setup")
            await asyncio.sleep(1.0)
            assert group.health().waits_for is not None
            assert "or the pattern matches no topic" in group.health().waits_for


@pytest.mark.parametrize(
    ("configured", "chosen"), [("classic", "classic"), ("consumer", "consumer"), ("auto", "consumer")]
)
async def test_the_group_protocol(env: VirtualEnvironment, configured: str, chosen: str):
    options = CONSUMER if configured == "consumer" else {"group_protocol": configured}
    handler = WorkHandler(env)
    async with member(env, **options) as group:
        before = group.health()
        assert before.group_protocol == ("classic" if configured == "auto" else chosen)
        assert "protocol" not in str(before)
        async with running(group.run("orders", handler)):
            await handler.until("claim 3@0")
            health = group.health()
    assert health.group_protocol == health.as_dict()["group_protocol"] == chosen
    assert f", {chosen} protocol;" in str(health)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_refused_heartbeat_is_answered(env: VirtualEnvironment, protocol: str):
    class Beats:
        def __init__(self) -> None:
            self.count = 0

        def on_heartbeat(self, group_id: str, seconds: float) -> None:
            self.count += 1

    beats, handler = Beats(), WorkHandler(env)
    options = CONSUMER if protocol == "consumer" else {}
    async with member(env, hooks=(beats,), **options) as group, running(group.run("orders", handler)):
        await handler.until("claim 3@0")
        api = "ConsumerGroupHeartbeat" if protocol == "consumer" else "Heartbeat"
        fault = env.cluster.faults.on(api).error(ErrorCode.UNKNOWN_MEMBER_ID)
        await fault.wait_hit()
        await env.bell.until(lambda: "lost [0, 1, 2, 3]" in handler.calls, "the loss", env.limit)
        assert beats.count == len(env.cluster.history.of(api))


async def test_a_session_that_drains_while_its_member_joins_again(env: VirtualEnvironment):
    """The join goes on at the coordinator, but the member does not wait for it."""
    gate = Gate(0, 0)
    handler = WorkHandler(env, gate)
    await env.produce(1, [0])
    async with (
        member(env, assignors=("cooperative-sticky",)) as group,
        running(group.run(re.compile("orders|other"), handler)),
    ):
        await gate.reached.wait()
        parked = env.cluster.faults.on("JoinGroup").hold()
        env.cluster.create_topic("other", 1)
        await parked.wait_hit()
        assert group.health().state == "joining"
        closing = asyncio.ensure_future(group.aclose())
        await asyncio.sleep(0.1)
        assert group.health().state == "draining"
        synced = env.cluster.faults.on("SyncGroup").hold()
        parked.release()
        await synced.wait_hit()
        assert group.health().state == "draining"
        synced.release()
        gate.open.set()
        await closing
