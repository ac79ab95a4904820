"""Build sessions and claims without a broker."""

from __future__ import annotations

from collections.abc import Iterable

from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.fetch_state import Budget
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.errors import SessionEnd
from asyncgroup.group.health.member_health import MemberHealth
from asyncgroup.group.membership import JoinedGroup
from asyncgroup.group.sessions.claim import Claim, ClaimState
from asyncgroup.group.sessions.claim_source import connect_offsets
from asyncgroup.group.sessions.session import Session
from asyncgroup.group.sessions.state import SessionState
from asyncgroup.hooks import Hooks
from asyncgroup.model import TopicPartition
from asyncgroup.offsets import Committer, MemberIdentity
from tests.offsets.fakes import FakeCluster

__all__ = ["consumer_of", "end_claim", "end_session", "make_claim", "make_session"]


def end_session(session: Session | None, cause: SessionEnd) -> None:
    """End a session as the group does."""
    assert session is not None
    session._inner.end(cause)


def end_claim(claim: Claim, cause: SessionEnd) -> None:
    """End a claim as its session does."""
    claim._inner.end(cause)


def consumer_of(claim: Claim) -> PartitionConsumer:
    """Return the partition consumer of a claim."""
    return claim._inner.consumer


def make_claim(session: Session, manager: Committer, tp: TopicPartition, offset: int = 0) -> Claim:
    """Return a new claim of a session, created as ClaimSource does."""
    budget = Budget(1 << 30, 1 << 20)
    consumer = PartitionConsumer(tp, offset, ConsumerConfig(), budget, Hooks())
    offsets = manager.manage(tp, offset)
    connect_offsets(consumer, offsets)
    claim = Claim(ClaimState(consumer, offsets))
    session._inner.claims.add(claim)
    return claim


def make_session(
    partitions: Iterable[tuple[str, int]] = (("orders", 0), ("orders", 1)),
) -> tuple[Session, FakeCluster]:
    """Return a session with these partitions, and the fake cluster that receives its commits."""
    cluster = FakeCluster()
    manager = Committer(cluster, "g")  # type: ignore[arg-type]
    tps = [TopicPartition(*tp) for tp in partitions]
    assignment = {
        topic: [tp.partition for tp in tps if tp.topic == topic] for topic in {tp.topic for tp in tps}
    }
    joined = JoinedGroup(MemberIdentity("member-1", 7), assignment, is_leader=False, partition_counts={})
    session = Session(SessionState("g", joined, manager, MemberHealth(lambda _error: False)))
    for tp in tps:
        make_claim(session, manager, tp)
    return session, cluster
