"""Encoding and decoding the records of `__consumer_offsets`, and replaying a partition."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from asyncgroup.broker.groups.shared.requests import (
    ClientDetails,
    GroupSnapshot,
    MemberSnapshot,
    MemberTimeouts,
    OffsetAndMetadata,
)
from asyncgroup.broker.groups.store.coordinator_records import (
    GroupRecord,
    OffsetRecord,
    decode_record,
    encode_record,
)
from asyncgroup.broker.groups.store.replayed import ReplayedPartition
from asyncgroup.errors import DecodeError
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m
from asyncgroup.wire.codec import encode_versioned, read_prefix
from asyncgroup.wire.records import BatchBuilder
from tests.broker.batches import append
from tests.broker.transactional import Writer

names = st.text(st.characters(codec="utf-8"), max_size=20)
millis = st.integers(0, 2**40)
seconds = st.integers(0, 2**30).map(lambda ms: ms / 1000)
timestamps = st.integers(-1, 2**45)

members = st.builds(
    MemberSnapshot,
    member_id=names,
    group_instance_id=st.none() | names,
    client=st.builds(ClientDetails, names, names),
    timeouts=st.builds(MemberTimeouts, seconds, seconds),
    subscription=st.binary(max_size=20),
    assignment=st.binary(max_size=20),
)
snapshots = st.builds(
    GroupSnapshot,
    group_id=st.just("g"),
    generation_id=st.integers(0, 2**31 - 1),
    protocol_type=st.none() | names.filter(bool),
    protocol_name=st.none() | names,
    leader=st.none() | names,
    members=st.lists(members, max_size=3).map(tuple),
    current_state_timestamp=timestamps,
)
topic_partitions = st.builds(TopicPartition, names, st.integers(0, 2**31 - 1))


def all_fields(offset: OffsetAndMetadata | None) -> tuple[int, ...] | None:
    return offset and (
        offset.offset,
        offset.leader_epoch,
        offset.metadata,
        offset.commit_timestamp,
        offset.expire_timestamp,
        offset.topic_id,
    )


@given(snapshot=st.none() | snapshots)
def test_a_group_record_round_trips(snapshot):
    record = GroupRecord("g", snapshot)
    key, value = encode_record(record)
    assert decode_record(key, value) == record
    assert (value is None) == (snapshot is None)


@given(
    tp=topic_partitions,
    offset=st.none()
    | st.builds(
        OffsetAndMetadata,
        st.integers(0, 2**62),
        st.integers(-1, 9),
        names,
        timestamps,
        st.just(-1),
        st.uuids(),
    ),
)
def test_an_offset_record_round_trips(tp, offset):
    key, value = encode_record(OffsetRecord("g", tp, offset))
    back = decode_record(key, value)
    assert (back.group_id, back.partition, all_fields(back.offset)) == ("g", tp, all_fields(offset))
    if value is not None:
        assert read_prefix(value) == 4


@given(millis, millis)
def test_an_offset_with_an_expire_timestamp_is_written_in_version_1(commit, expire):
    offset = OffsetAndMetadata(7, 3, "m", commit, expire)
    _, value = encode_record(OffsetRecord("g", TopicPartition("t", 0), offset))
    assert (
        read_prefix(value) == 1
    )  # the only one with an expire timestamp; it has neither leader epoch nor topic id
    key, _ = encode_record(OffsetRecord("g", TopicPartition("t", 0), None))
    assert all_fields(decode_record(key, value).offset) == (7, -1, "m", commit, expire, m.NO_UUID)


@pytest.mark.parametrize("version", range(5))
def test_offset_values_of_every_version_are_decoded(version):
    key = encode_versioned(m.OffsetCommitKey("g", "t", 1), 0)
    value = m.OffsetCommitValue(offset=5, metadata="m", commit_timestamp=9)
    found = decode_record(key, encode_versioned(value, version))
    assert found == OffsetRecord("g", TopicPartition("t", 1), OffsetAndMetadata(5, metadata="m"))
    assert found.offset.commit_timestamp == 9


def test_a_legacy_offset_key_is_decoded():
    key = encode_versioned(m.LegacyOffsetCommitKey("g", "t", 1), 0)
    assert decode_record(key, None) == OffsetRecord("g", TopicPartition("t", 1), None)


def test_a_member_without_a_rebalance_timeout():
    member = m.GroupMetadataValue.MemberMetadata(member_id="a", session_timeout=6000)
    value = m.GroupMetadataValue("consumer", 1, "range", "a", members=[member])
    found = decode_record(encode_versioned(m.GroupMetadataKey("g"), 0), encode_versioned(value, 0))
    assert found.snapshot.members[0].timeouts.rebalance == 6.0
    assert found.snapshot.current_state_timestamp == -1


def test_records_of_other_group_types_are_ignored():
    assert decode_record(b"\x00\x0b\x00\x01g", b"\x00\x00") is None
    for key in (None, b"", b"\x00"):
        with pytest.raises(DecodeError):
            decode_record(key, b"")


# -- replaying -------------------------------------------------------------------------------------------------

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def batch_of(*records, producer: int = -1) -> bytes:
    inside = producer >= 0
    builder = BatchBuilder(
        transactional=inside,
        producer_id=producer,
        producer_epoch=0 if inside else -1,
        base_sequence=0 if inside else -1,
    )
    for record in records:
        pair = record if isinstance(record, tuple) else encode_record(record)
        builder.append(1, *pair)
    return builder.build()


def test_a_batch_that_cannot_be_read_is_skipped(caplog):
    replayed = ReplayedPartition(4)
    good = batch_of(OffsetRecord("g", T0, OffsetAndMetadata(1)))
    bad = batch_of((b"\x00\x01\x00", b"?"))
    torn = bytearray(batch_of(OffsetRecord("g", T1, OffsetAndMetadata(9))))
    torn[-1] ^= 1
    replayed.replay(bad + bytes(torn) + good)
    assert dict(replayed.offsets("g")) == {T0: OffsetAndMetadata(1)}
    assert caplog.text.count("__consumer_offsets-4: skipped a batch that cannot be read") == 2


def test_tombstones_of_offsets_followed_by_the_tombstone_of_their_group():
    replayed = ReplayedPartition(0)
    replayed.replay(
        batch_of(OffsetRecord("g", T0, OffsetAndMetadata(1)), OffsetRecord("h", T0, OffsetAndMetadata(1)))
    )
    replayed.replay(batch_of(OffsetRecord("g", T0, None), GroupRecord("g", None)))
    assert set(replayed.groups) == {"h"}
    assert replayed.offsets("g") == {}


class TestTransactions:
    def replayed(self, *steps) -> ReplayedPartition:
        """Return the state after a log of these steps.

        A step is (producer id, offset or the name of a `Writer` method for a marker).
        """
        from asyncgroup.broker.log.partition_log import PartitionLog

        log = PartitionLog("__consumer_offsets", 0)
        for producer, what in steps:
            if isinstance(what, str):
                getattr(Writer(log, producer), what)()
            else:
                append(log, batch_of(OffsetRecord("g", T0, what), producer=producer), 0, by_coordinator=True)
        replayed = ReplayedPartition(0)
        replayed.replay(log.read(0, 1 << 20))
        return replayed

    def test_pending_until_the_marker(self):
        replayed = self.replayed((1, OffsetAndMetadata(5)))
        assert (dict(replayed.offsets("g")), set(replayed.unstable_partitions("g"))) == ({}, {T0})
        assert replayed.has_open_transactions("g")
        assert not replayed.has_open_transactions("h")
        assert set(replayed.groups) == {"g"}

    def test_committed(self):
        replayed = self.replayed((1, OffsetAndMetadata(5)), (1, OffsetAndMetadata(6)), (1, "commit"))
        assert (replayed.offsets("g")[T0].offset, list(replayed.unstable_partitions("g"))) == (6, [])

    def test_aborted(self):
        replayed = self.replayed((-1, OffsetAndMetadata(4)), (1, OffsetAndMetadata(5)), (1, "abort"))
        assert replayed.offsets("g")[T0].offset == 4

    def test_a_later_commit_outside_of_the_transaction_wins(self):
        steps = (1, OffsetAndMetadata(5)), (-1, OffsetAndMetadata(6)), (1, "commit")
        assert self.replayed(*steps).offsets("g")[T0].offset == 6

    def test_a_tombstone_removes_pending_offsets(self):
        replayed = self.replayed((1, OffsetAndMetadata(5)), (-1, None), (1, "commit"))
        assert replayed.offsets("g") == {}
