"""Sessions and claims: marks, commits, the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncgroup.consumer.fetch_outcome import FetchedRecords
from asyncgroup.errors import (
    BrokerError,
    CommitFailedError,
    ConfigError,
    ErrorCode,
    GroupClosed,
    MemberLost,
    Rebalanced,
    UsageError,
)
from asyncgroup.model import Batch, Record, TopicPartition
from tests.consumer.support import batch
from tests.group.parts import consumer_of, end_claim, end_session, make_session
from tests.offsets.fakes import committed_by

ORDERS = TopicPartition("orders", 0)


def record(offset: int, partition: int = 0) -> Record:
    return Record("orders", partition, offset)


# -- marks and commits --------------------------------------------------------------------------------------------------


async def test_a_mark_is_the_next_offset() -> None:
    session, cluster = make_session()
    claim = session.claims[0]
    claim.mark(record(4))
    assert claim.next_mark == 5
    claim.mark(Batch("orders", 0, [record(5), record(9)]), "text")
    assert claim.next_mark == 10
    claim.mark(record(3))
    assert claim.next_mark == 10
    session.mark_record(record(0, partition=1))
    await session.commit()
    ((_, request),) = cluster.coordinators.requests
    assert committed_by(request) == {ORDERS: (10, "text"), ("orders", 1): (1, "")}
    assert (request.member_id, request.generation_id_or_member_epoch) == ("", -1), "the committer's identity"


@pytest.mark.parametrize("done", [5, None, b"value", ORDERS], ids=str)
async def test_only_records_and_batches_can_be_marked(done: Any) -> None:
    session, _ = make_session()
    claim = session.claims[0]
    with pytest.raises(
        ConfigError,
        match=r"done=.* is not allowed: a Record or a Batch; session\.mark_offset marks an offset",
    ):
        claim.mark(done)
    with pytest.raises(ConfigError, match=r"record=.* is not allowed: a Record"):
        session.mark_record(done)
    assert claim.next_mark == 0


async def test_mark_offset_and_reset_offset() -> None:
    session, cluster = make_session()
    session.mark_offset("orders", 0, 8)
    session.mark_offset("orders", 0, 6)
    assert session.claims[0].next_mark == 8
    session.reset_offset("orders", 0, 9)
    assert session.claims[0].next_mark == 8
    session.reset_offset("orders", 0, 2, "again")
    await session.commit()
    assert committed_by(cluster.coordinators.requests[0][1]) == {ORDERS: (2, "again")}


@pytest.mark.parametrize("offset", [-1, 1.5, float("nan"), float("inf"), 2**63, "5", None], ids=repr)
async def test_invalid_offsets_and_metadata(offset: Any) -> None:
    """Found by review: one invalid offset could not be encoded, and the commits of all partitions failed."""
    session, _ = make_session()
    for call in (session.mark_offset, session.reset_offset):
        with pytest.raises(ConfigError, match=f"offset={offset!r} is not allowed"):
            call("orders", 0, offset)
        for metadata in (None, 5, b"text", "\ud800", "x" * 40_000):
            with pytest.raises(ConfigError, match=r"metadata=.{1,30} is not allowed"):
                call("orders", 0, 5, metadata)  # type: ignore[arg-type]
    assert session.claims[0].next_mark == 0


@pytest.mark.parametrize("topic_and_partition", [("orders", 1), ("other", 0)])
async def test_a_claim_rejects_records_of_other_partitions(topic_and_partition: tuple[str, int]) -> None:
    """Found by review: the record's offset was committed for the claim's partition, past records not read."""
    session, _ = make_session()
    (claim, *_) = session.claims
    foreign = Record(*topic_and_partition, 1_000_000)
    for done in (foreign, Batch(*topic_and_partition, [foreign])):
        with pytest.raises(ConfigError, match="is not allowed: a record of orders-0"):
            claim.mark(done)
    assert claim.next_mark == 0


async def test_marks_of_partitions_that_are_not_assigned() -> None:
    session, _ = make_session()
    for call in (
        lambda: session.mark_record(record(1, partition=7)),
        lambda: session.mark_offset("other", 0, 1),
        lambda: session.reset_offset("orders", 9, 1),
    ):
        with pytest.raises(ConfigError, match="one of the partitions owned: orders-0, orders-1"):
            call()


async def test_marks_of_a_partition_that_has_not_started() -> None:
    """It is assigned, so the error must not say that this member does not own it."""
    session, _ = make_session()
    session._inner.claims.apply({"orders": [0, 1, 2]})
    for call in (
        lambda: session.mark_record(record(1, partition=2)),
        lambda: session.mark_offset("orders", 2, 1),
        lambda: session.reset_offset("orders", 2, 1),
        lambda: session.group_offsets(record(1, partition=2)),
    ):
        with pytest.raises(
            ConfigError, match="partition='orders-2' is not allowed: a partition that has started"
        ):
            call()


async def test_a_failed_commit_names_the_partitions() -> None:
    session, cluster = make_session()

    async def refuse(_: object) -> None:
        raise BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "commit")

    cluster.coordinators.script = refuse
    session.claims[1].mark(record(0, partition=1))
    with pytest.raises(CommitFailedError, match=r"'g'.*orders-1: commit: GROUP_AUTHORIZATION_FAILED"):
        await session.commit()


# -- the end ------------------------------------------------------------------------------------------------------------


async def test_the_end_stops_every_claim_with_its_cause() -> None:
    session, _ = make_session()
    told: list[object] = []
    session._inner.on_end = told.append
    waiting = [asyncio.ensure_future(session.wait_ended())]
    waiting += [asyncio.ensure_future(claim.wait_ended()) for claim in session.claims]
    reading = asyncio.ensure_future(anext(session.claims[0]))
    await asyncio.sleep(1)
    assert not session.ended
    cause = Rebalanced("the group rebalances")
    end_session(session, cause)
    await asyncio.gather(*waiting)
    with pytest.raises(StopAsyncIteration):
        await reading
    assert (session.cause, session.ended, session.is_lost) == (cause, True, False)
    assert [claim.cause for claim in session.claims] == [cause, cause]
    assert told == [cause]


async def test_the_first_cause_is_kept_but_a_loss_replaces_it() -> None:
    session, cluster = make_session()
    first = Rebalanced("first")
    end_session(session, first)
    end_session(session, GroupClosed("second"))
    assert session.cause is first
    session.claims[0].mark(record(0))
    reason = BrokerError(ErrorCode.UNKNOWN_MEMBER_ID, "heartbeat")
    loss = MemberLost("lost")
    loss.__cause__ = reason
    end_session(session, loss)
    end_session(session, MemberLost("once more"))
    assert session.cause is loss
    assert session.is_lost
    await asyncio.wait_for(session.wait_lost(), 1)
    with pytest.raises(CommitFailedError) as raised:
        await session.commit()
    assert repr(raised.value.errors) == repr({ORDERS: reason})
    assert cluster.coordinators.requests == []


async def test_on_end_is_called_for_every_cause() -> None:
    """A later, more urgent cause shortens the time of the handlers."""
    session, _ = make_session()
    told: list[object] = []
    session._inner.on_end = told.append
    causes = [Rebalanced("first"), GroupClosed("second")]
    for cause in causes:
        end_session(session, cause)
    assert told == causes


async def test_marks_and_commits_after_the_end() -> None:
    session, cluster = make_session()
    claim = session.claims[0]
    end_session(session, GroupClosed("closed"))
    session._inner.close()
    claim.mark(record(5))
    with pytest.raises(UsageError, match="has ended: nothing can be committed"):
        await session.commit()
    with pytest.raises(ConfigError, match="owned: none"):
        session.mark_record(record(5))
    assert cluster.coordinators.requests == []


# -- repr and views -----------------------------------------------------------------------------------------------------


async def test_session_repr() -> None:
    session, _ = make_session([("orders", 2), ("audit", 0), ("orders", 10)])
    assert session.partitions == [("audit", 0), ("orders", 2), ("orders", 10)]
    assert (session.member_id, session.generation_id) == ("member-1", 7)
    assert repr(session) == "<Session 'g' generation 7 member 'member-1': 3 claims, live>"
    end_session(session, Rebalanced("because"))
    assert repr(session) == "<Session 'g' generation 7 member 'member-1': 3 claims, ended: Rebalanced>"


async def test_a_session_without_claims_is_live() -> None:
    session, cluster = make_session([])
    assert (session.partitions, session.claims, session.ended) == ([], [], False)
    await session.commit()
    assert cluster.coordinators.requests == []


async def test_claim_repr() -> None:
    session, _ = make_session()
    claim = session.claims[0]
    assert repr(claim) == "<Claim orders-0: live, lag 0, next commit 0>"
    consumer_of(claim)._inner.fetched(FetchedRecords(batch(0, count=4), 9, 0, zero_copy=True))
    assert (claim.topic, claim.partition, claim.tp, claim.initial_offset) == ("orders", 0, ORDERS, 0)
    assert (claim.position, claim.high_watermark, claim.lag) == (0, 9, 9)
    for _ in range(2):
        consumer_of(claim)._inner.check_progress()
    assert claim.stalled
    assert repr(claim) == "<Claim orders-0: stalled, lag 9, next commit 0>"
    consumer_of(claim).pause()
    assert (claim.paused, claim.stalled) == (True, True)
    assert repr(claim) == "<Claim orders-0: paused, lag 9, next commit 0>"
    end_claim(claim, GroupClosed("the group was closed"))
    assert repr(claim) == "<Claim orders-0: ended: GroupClosed, lag 9, next commit 0>"


async def test_a_claim_iterates_as_its_partition_consumer() -> None:
    session, _ = make_session()
    claim = session.claims[0]
    consumer_of(claim)._inner.fetched(FetchedRecords(batch(0, count=6), 6, 0, zero_copy=True))
    assert (await anext(claim)).offset == 0
    async for found in claim:
        assert found.offset == 1
        break
    assert [r.offset for r in await anext(claim.batches(max_records=2))] == [2, 3]
    claim.seek(0)
    assert claim.position == 0
    with pytest.raises(ConfigError, match="max_records=0"):
        claim.batches(max_records=0)
