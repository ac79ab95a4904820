"""The lag of a partition as a pure function: against a count of single offsets, and each case by itself."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from asyncgroup import TopicPartition
from asyncgroup.ack_window import AckWindow
from asyncgroup.admin import (
    AckWindowLag,
    GroupDescription,
    GroupOffset,
    MemberDescription,
    PartitionLag,
)
from asyncgroup.admin.lag_values import PartitionFacts, group_lag, partition_lag
from asyncgroup.errors import RequestTimedOut
from asyncgroup.offsets.commit_metadata import CommitMetadata, encode_metadata
from asyncgroup.offsets.window_encoding import encode_window

TP = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)
ID, OTHER_ID = UUID(int=1), UUID(int=2)


def commit(
    offset: int,
    acked: set[int] = frozenset(),  # type: ignore[assignment]
    attempts: dict[int, int] | None = None,
    topic_id: UUID = ID,
) -> GroupOffset:
    """Return a work queue's commit, with these acknowledged offsets above the committed one."""
    window = AckWindow(offset, [(at, at + 1) for at in sorted(acked)], attempts)
    assert window.base == offset
    text = encode_window(window, offset, 4000).text
    return GroupOffset(offset, encode_metadata(TP, offset, CommitMetadata("", topic_id, text)), 3)


small = st.integers(0, 60)


@given(
    base=small, acked=st.sets(st.integers(1, 50), max_size=20), start=small, size=small, tries=st.sets(small)
)
def test_the_counts_are_those_of_single_offsets(
    base: int, acked: set[int], start: int, size: int, tries: set[int]
) -> None:
    done = {base + at for at in acked}
    end = start + size
    tried = {at: 1 for at in tries if at >= base and at not in done}
    facts = PartitionFacts(commit(base, done, tried), start, end, ID)
    found = partition_lag(TP, facts)
    left = [at for at in range(max(base, start), end) if at not in done]
    assert found.lag == len(left)
    assert found.lost == len([at for at in range(base, start) if at not in done])
    assert found.is_beyond_log_end == (base > end)
    if not done and not tried:
        assert found.window is None
        return
    assert found.window == AckWindowLag(
        acked_above=len([at for at in done if start <= at < end]),
        open=len([at for at in left if at < max(done, default=base)]),
        failed=len([at for at in left if at in tried]),
        end=max(done, default=base - 1) + 1,
        beyond=len([at for at in left if at > max(done, default=-1)]),
    )
    assert found.lag == found.window.open + found.window.beyond


@given(base=small, start=small, size=small)
def test_without_a_window_the_lag_is_that_of_kafkas_tool_but_for_loss(
    base: int, start: int, size: int
) -> None:
    end = start + size
    found = partition_lag(TP, PartitionFacts(GroupOffset(base, "text"), start, end))
    assert found.lag is not None
    assert found.lost is not None
    assert found.window is None
    if base <= end:
        assert found.lag + found.lost == end - base
    else:
        assert (found.lag, found.lost, found.is_beyond_log_end) == (0, 0, True)


def test_a_partition_without_a_commit() -> None:
    assert partition_lag(TP, PartitionFacts(None, 5, 9)) == PartitionLag(None, None, 5, 9, None, None)


def test_a_commit_below_the_start_of_the_log_is_loss() -> None:
    found = partition_lag(TP, PartitionFacts(GroupOffset(2, "", 4), 5, 9))
    assert (found.committed_offset, found.leader_epoch, found.lag, found.lost) == (2, 4, 4, 3)


def test_records_that_were_done_before_the_log_deleted_them_are_not_lost() -> None:
    found = partition_lag(TP, PartitionFacts(commit(2, {4, 6}), 5, 9, ID))
    assert (found.lost, found.lag) == (2, 3)
    assert found.window == AckWindowLag(acked_above=1, open=1, failed=0, end=7, beyond=2)


def test_a_commit_of_a_deleted_topic_counts_the_whole_log() -> None:
    found = partition_lag(TP, PartitionFacts(commit(100, {102}, topic_id=OTHER_ID), 5, 9, ID))
    assert (found.lag, found.lost, found.is_of_deleted_topic, found.is_beyond_log_end) == (4, 0, True, False)
    assert found.window is None
    # without the topic's id the commit counts
    assert partition_lag(TP, PartitionFacts(commit(100, topic_id=OTHER_ID), 5, 9)).is_beyond_log_end


def test_a_log_start_that_was_moved_after_the_end_was_asked_for() -> None:
    found = partition_lag(TP, PartitionFacts(GroupOffset(2), 9, 7))
    assert (found.log_start, found.log_end, found.lag, found.lost) == (9, 9, 0, 7)


@pytest.mark.parametrize("window", ["~~~", "garbage that is none"])
def test_a_window_that_cannot_be_decoded_is_ignored(window: str) -> None:
    metadata = encode_metadata(TP, 2, CommitMetadata("", ID, window))
    found = partition_lag(TP, PartitionFacts(GroupOffset(2, metadata), 0, 9, ID))
    assert (found.lag, found.window) == (7, None)


def test_an_error_leaves_what_is_known() -> None:
    error = RequestTimedOut("node 1")
    found = partition_lag(TP, PartitionFacts(GroupOffset(2), None, None, ID, error))
    assert found == PartitionLag(2, None, None, None, None, None, error=error)
    found = partition_lag(TP, PartitionFacts(None, 0, 9, ID, error))
    assert (found.log_end, found.lag, found.error) == (9, None, error)


def test_the_totals_of_a_group() -> None:
    member = MemberDescription("m", None, "c", "/10.0.0.1", (OTHER, TopicPartition("orders", 2)))
    group = GroupDescription("g", "classic", "Stable", "consumer", "range", (member,))
    error = RequestTimedOut("node 1")
    found = group_lag(
        group,
        {
            TopicPartition("orders", 3): PartitionFacts(GroupOffset(1), None, None, ID, error),
            OTHER: PartitionFacts(GroupOffset(1), 3, 9),
            TP: PartitionFacts(GroupOffset(5), 0, 9),
            TopicPartition("orders", 2): PartitionFacts(None, 0, 9),
        },
    )
    assert [tp.partition for tp in found.partitions] == [0, 1, 2, 3]
    assert (found.lag_sum, found.lag_max, found.lost_sum) == (10, 6, 2)
    assert found.without_commit == (TopicPartition("orders", 2),)
    assert found.errors == {TopicPartition("orders", 3): error}
    owned = found.partitions[OTHER]
    assert (owned.member_id, owned.host, owned.client_id) == ("m", "/10.0.0.1", "c")
    assert found.partitions[TP].member_id is None
    assert group_lag(group, {}).lag_max == 0
