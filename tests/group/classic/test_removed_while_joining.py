"""A cooperative member that a consumer group removes while it joins again, as its JoinGroup is not answered (KIP-848).

A classic group would refuse its next JoinGroup. A consumer group accepts it, with the former member id, and its commits.

`handler.calls` are the calls of the handler in order: `claim 3@0` of partition 3 from offset 0 on, `record 0@4` and `done 0@4` before
and after the work on the record at offset 4 of partition 0, `cancelled 0` and `end 0` of partition 0, `assigned [0, 1]`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup import CommitFailedError, ConsumerGroup
from tests.scenario.support import SessionEndHook, WorkHandler, committed, member, running
from tests.scenario.three_protocols import PROTOCOLS
from tests.stories.traffic import partitions_of
from tests.stories.virtual import VirtualEnvironment

REBALANCE_TIMEOUT = 4.0
"""Seconds after a JoinGroup within which the coordinator expects the SyncGroup of a member with the classic protocol."""

OLD: dict[str, Any] = {**PROTOCOLS["cooperative"], "rebalance_timeout": REBALANCE_TIMEOUT}
NEW: dict[str, Any] = {**PROTOCOLS["consumer"], "auto_commit_interval": 1.0}


async def _wait_owned(env: VirtualEnvironment, group: ConsumerGroup, count: int) -> None:
    await env.bell.until(lambda: len(partitions_of(group)) == count, f"{count} partitions", env.limit)


def _revoked(handler: WorkHandler) -> bool:
    return any(call.startswith("revoked") for call in handler.calls)


@pytest.mark.parametrize("by_hand", [False, True])
async def test_commits_nothing_for_partitions_that_another_member_got(by_hand: bool) -> None:
    """Found by simulation: it revoked them after the join, and committed older offsets than their next owner had."""
    async with VirtualEnvironment.made(nodes=1, group_consumer_assignment_interval=0.1) as env:
        env.protocol = {}
        ann, bob, ends = WorkHandler(env), WorkHandler(env), SessionEndHook()
        await env.produce(5, range(4))
        async with (
            member(env, hooks=(ends,), auto_commit=not by_hand, auto_commit_interval=3000.0, **OLD) as old,
            running(old.run("orders", ann)),
        ):
            await ann.until("done 3@4")
            env.cluster.faults.on("JoinGroup", client_id="ann").drop()
            async with (
                member(env, "bob", host="10.2.0.2", **NEW) as new,
                running(new.run("orders", bob)),
            ):
                # bob gets all of them, processes what ann did not commit, and more
                await _wait_owned(env, new, 4)
                await env.produce(5, range(4))
                await asyncio.sleep(2.0)
                assert committed(env) == dict.fromkeys(range(4), 10)
                if by_hand:
                    with pytest.raises(CommitFailedError, match="UNKNOWN_MEMBER_ID"):
                        await ann.sessions[0].commit()
                await env.bell.until(lambda: "cleanup" in ann.calls or _revoked(ann), "a join", env.limit)
                await asyncio.sleep(2.0)
                sent = env.cluster.history.of("OffsetCommit", client_id="ann")
                accepted = [
                    (topic.name or topic.topic_id, each.partition_index)
                    for exchange in sent
                    for topic in exchange.response.topics
                    for each in topic.partitions
                    if not each.error_code
                ]
                assert committed(env) == dict.fromkeys(range(4), 10)
                assert not accepted
                assert ends.names == ["MemberLost"]
                assert "lost [0, 1, 2, 3]" in ann.calls
                assert not _revoked(ann)
