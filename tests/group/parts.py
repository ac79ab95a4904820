"""Build sessions and claims without a broker."""

from __future__ import annotations

from collections.abc import Iterable

from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.budget import Budget
from asyncgroup.consumer.partition_consumer import PartitionConsumer
from asyncgroup.group.claim import Claim
from asyncgroup.group.session import Session
from asyncgroup.group.session_start import connect_offsets
from asyncgroup.hooks import Hooks
from asyncgroup.model import TopicPartition
from asyncgroup.offsets import Committer, MemberIdentity
from tests.offsets.fakes import FakeCluster

__all__ = ["make_claim", "make_session"]


def make_claim(session: Session, manager: Committer, tp: TopicPartition, offset: int = 0) -> Claim:
    """Return a new claim of a session, created as SessionRun does."""
    budget = Budget(1 << 30, 1 << 20)
    consumer = PartitionConsumer(tp, offset, ConsumerConfig(), budget, Hooks())
    offsets = manager.manage(tp, offset)
    connect_offsets(consumer, offsets)
    claim = Claim(consumer, offsets)
    session.claims.append(claim)
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
    session = Session("g", MemberIdentity("member-1", 7), assignment, manager)
    for tp in tps:
        make_claim(session, manager, tp)
    return session, cluster
