"""`Session.group_offsets`: the value that a producer commits in a transaction; such marks leave the automatic commits."""

from __future__ import annotations

from typing import Any

import pytest

from asyncgroup.errors import ConfigError, UsageError
from asyncgroup.model import Batch, CommittedOffset, GroupOffsets, Record, TopicPartition
from asyncgroup.offsets import MemberIdentity
from tests.group.parts import make_session
from tests.offsets.fakes import committed_by

ZERO, ONE = TopicPartition("orders", 0), TopicPartition("orders", 1)


def record(offset: int, partition: int = 0, epoch: int = 3) -> Record:
    return Record("orders", partition, offset, leader_epoch=epoch)


async def test_the_offsets_after_records_and_batches_with_the_member() -> None:
    session, _ = make_session()
    session._inner.identity = MemberIdentity("member-1", 8, "a")
    found = session.group_offsets(record(4), Batch("orders", 1, [record(5, 1), record(9, 1)]), record(2))
    offsets = {ZERO: CommittedOffset(5, "", 3), ONE: CommittedOffset(10, "", 3)}
    assert found == GroupOffsets("g", offsets, "member-1", 8, "a")
    assert [claim.next_mark for claim in session.claims] == [0, 0], "nothing is marked"


async def test_a_range_without_records_is_skipped() -> None:
    session, _ = make_session()
    session.claims[0]._inner.offsets.skip_range(5, 7, 4)
    assert session.group_offsets(record(4)).offsets == {ZERO: CommittedOffset(7, "", 4)}
    assert session.group_offsets(record(3)).offsets == {ZERO: CommittedOffset(4, "", 3)}


async def test_marks_of_partitions_in_transactions_are_not_committed_otherwise() -> None:
    session, cluster = make_session()
    session.group_offsets(record(4))
    for claim in session.claims:
        claim.mark(record(6, claim.partition))
    await session.commit()
    await session._inner.offsets.commit_last(1.0)
    ((_, request),) = cluster.coordinators.requests
    assert committed_by(request) == {ONE: (7, "")}


async def test_without_arguments_the_marks_of_all_claims() -> None:
    session, cluster = make_session()
    session._inner.auto_commit = False
    assert session.group_offsets().offsets == {}
    session.claims[1].mark(record(6, 1), "text")
    assert session.group_offsets().offsets == {ONE: CommittedOffset(7, "text", 3)}
    assert not cluster.coordinators.requests


async def test_marks_that_are_committed_automatically_are_refused() -> None:
    session, _ = make_session()
    with pytest.raises(UsageError, match="auto_commit is on: pass the records or batches"):
        session.group_offsets()


@pytest.mark.parametrize("done", [5, None, ZERO, record(1, 7)], ids=str)
async def test_other_values_and_partitions(done: Any) -> None:
    session, _ = make_session()
    with pytest.raises(ConfigError, match=r"done|partition"):
        session.group_offsets(done)


async def test_a_refused_argument_changes_no_marks() -> None:
    session, cluster = make_session()
    session.mark_offset("orders", 0, 4)
    with pytest.raises(ConfigError, match="done"):
        session.group_offsets(record(3), "no record")  # type: ignore[arg-type]
    await session.commit()
    assert cluster.coordinators.requests
