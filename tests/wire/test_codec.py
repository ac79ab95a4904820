"""Edge cases of the codec: versions, absent fields, nulls, tagged fields, lengths, bytes left over."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from asyncgroup.errors import DecodeError, UnsupportedVersionError
from asyncgroup.wire import messages as m
from asyncgroup.wire.apis import API_BY_NAME
from asyncgroup.wire.codec import decode, decode_from, encode, write_pieces
from asyncgroup.wire.kafka_releases import API_RELEASES, FIELD_RELEASES
from asyncgroup.wire.primitives import read_uvarint, skip_tags, uvarint

Topic = m.FetchRequest.FetchTopic
Partition = m.FetchRequest.FetchPartition


class TestVersions:
    @pytest.mark.parametrize("version", [-1, 3, 19])
    def test_out_of_range(self, version):
        with pytest.raises(UnsupportedVersionError, match=f"FetchRequest: version {version} is not in 4-18"):
            encode(m.FetchRequest(), version)
        with pytest.raises(UnsupportedVersionError, match=f"version {version} is not in 4-18"):
            decode(m.FetchRequest, version, b"")

    def test_an_ignorable_field_is_dropped(self):
        request = m.FetchRequest(rack_id="r1")
        assert decode(m.FetchRequest, 10, encode(request, 10)).rack_id == ""
        assert decode(m.FetchRequest, 11, encode(request, 11)).rack_id == "r1"

    def test_a_field_that_is_not_ignorable_is_an_error(self):
        request = m.JoinGroupRequest(group_instance_id="static")
        with pytest.raises(
            UnsupportedVersionError,
            match=r"^group_instance_id needs Kafka 2\.3: version 4 of JoinGroupRequest",
        ):
            encode(request, 4)
        assert decode(m.JoinGroupRequest, 5, encode(request, 5)) == request

    def test_what_needs_a_release_is_named_by_fields_and_apis_that_exist(self):
        for name in FIELD_RELEASES:
            message, _, field = name.rpartition(".")
            assert hasattr(getattr(m, message or "JoinGroupRequest")(), field)
        assert API_RELEASES.keys() <= API_BY_NAME.keys()

    def test_fields_of_structs_are_checked_too(self):
        request = m.LeaveGroupRequest(members=[m.LeaveGroupRequest.MemberIdentity(member_id="m")])
        with pytest.raises(
            UnsupportedVersionError, match=r"LeaveGroupRequest\.members is set.*leave it at its default"
        ):
            encode(request, 2)

    def test_a_struct_missing_in_the_version_must_have_its_defaults(self):
        state = m.FetchRequest.ReplicaState(replica_id=3)
        assert encode(m.FetchRequest(), 14)
        with pytest.raises(UnsupportedVersionError, match="replica_state"):
            encode(m.FetchRequest(replica_state=state), 14)

    def test_null_in_an_array_missing_in_the_version_is_an_error(self):
        """Null topics mean all topics, and OffsetFetch v8 has no such field at the top level."""
        with pytest.raises(UnsupportedVersionError, match=r"OffsetFetchRequest\.topics is set"):
            encode(m.OffsetFetchRequest(topics=None), 8)

    def test_a_field_missing_in_the_version_is_decoded_as_its_default(self):
        response = decode(m.FetchResponse, 4, encode(m.FetchResponse(throttle_time_ms=9), 4))
        assert (response.throttle_time_ms, response.session_id, response.node_endpoints) == (9, 0, [])

    def test_decoded_objects_do_not_share_defaults(self):
        data = encode(m.FetchResponse(), 4)
        one, other = decode(m.FetchResponse, 4, data), decode(m.FetchResponse, 4, data)
        one.node_endpoints.append(m.FetchResponse.NodeEndpoint())
        assert other.node_endpoints == []

    def test_decoded_objects_do_not_share_defaults_of_tagged_structs(self):
        data = encode(m.FetchRequest(), 15)
        one, other = decode(m.FetchRequest, 15, data), decode(m.FetchRequest, 15, data)
        one.replica_state.replica_id = 5
        assert other.replica_state.replica_id == -1


class TestNulls:
    def test_null_in_a_version_that_is_not_nullable(self):
        with pytest.raises(
            UnsupportedVersionError, match="Topics is None, but it is not nullable in version 0"
        ):
            encode(m.MetadataRequest(topics=None), 0)
        assert decode(m.MetadataRequest, 1, encode(m.MetadataRequest(topics=None), 1)).topics is None

    @pytest.mark.parametrize("version", [3, 4])
    def test_null_in_a_field_that_is_not_nullable(self, version):
        with pytest.raises(UnsupportedVersionError, match="GroupId is None"):
            encode(m.HeartbeatRequest(group_id=None), version)

    @pytest.mark.parametrize(("version", "null"), [(3, b"\xff\xff"), (4, b"\x00")])
    def test_decoding_null_in_a_field_that_is_not_nullable(self, version, null):
        with pytest.raises(DecodeError, match=f"HeartbeatRequest v{version}: GroupId is null"):
            decode(m.HeartbeatRequest, version, null + b"\x00" * 20)

    def test_elements_are_not_nullable(self):
        with pytest.raises(UnsupportedVersionError, match="Key is None"):
            encode(m.FindCoordinatorRequest(key=None), 0)
        with pytest.raises(UnsupportedVersionError, match="CoordinatorKeys is None"):
            encode(m.FindCoordinatorRequest(coordinator_keys=["a", None]), 4)

    @pytest.mark.parametrize("assignment", [None, m.ConsumerGroupHeartbeatResponse.Assignment()])
    def test_nullable_structs(self, assignment):
        """KIP-893."""
        message = m.ConsumerGroupHeartbeatResponse(assignment=assignment)
        assert decode(m.ConsumerGroupHeartbeatResponse, 0, encode(message, 0)).assignment == assignment


class TestValues:
    @pytest.mark.parametrize(
        "message",
        [
            m.HeartbeatRequest(generation_id=1 << 31),
            m.HeartbeatRequest(generation_id="7"),
            m.HeartbeatRequest(group_id=7),
            m.HeartbeatRequest(group_id="\ud800"),
            m.HeartbeatRequest(group_id="x" * 40_000),
        ],
    )
    def test_the_error_shows_the_message(self, message):
        with pytest.raises(
            UnsupportedVersionError, match="HeartbeatRequest v3 cannot represent HeartbeatRequest"
        ):
            encode(message, 3)

    @pytest.mark.parametrize("length", [0, 126, 127, 128, 16_382, 16_383, 16_384, 32_767])
    def test_lengths_around_varint_sizes(self, length):
        request = m.HeartbeatRequest(group_id="x" * length)
        assert decode(m.HeartbeatRequest, 4, encode(request, 4)) == request

    @pytest.mark.parametrize("version", [3, 4])
    def test_a_string_is_limited_in_every_version(self, version):
        words = {3: "cannot represent", 4: "GroupId has 32768 bytes, at most 32767 are allowed"}
        with pytest.raises(UnsupportedVersionError, match=words[version]):
            encode(m.HeartbeatRequest(group_id="é" * 16_384), version)

    def test_a_longer_string_is_not_decoded(self):
        known = encode(m.HeartbeatRequest(group_id="g"), 4)
        with pytest.raises(DecodeError, match="GroupId has 32768 bytes, at most 32767 are allowed"):
            decode(m.HeartbeatRequest, 4, b"\x81\x80\x02" + b"x" * 32_768 + known[2:])

    def test_bytes_are_not_limited(self):
        request = m.SyncGroupRequest(
            assignments=[m.SyncGroupRequest.SyncGroupRequestAssignment(assignment=b"x" * 100_000)]
        )
        assert decode(m.SyncGroupRequest, 5, encode(request, 5)) == request

    @pytest.mark.parametrize("length", [0, 126, 127, 128, 300])
    @pytest.mark.parametrize("version", [11, 12])
    def test_long_arrays(self, length, version):
        request = m.FetchRequest(
            topics=[Topic(topic="t", partitions=[Partition(partition=i) for i in range(length)])],
            forgotten_topics_data=[m.FetchRequest.ForgottenTopic(topic="t", partitions=list(range(length)))],
        )
        assert decode(m.FetchRequest, version, encode(request, version)) == request

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_every_buffer_type_can_be_encoded_and_decoded(self, kind):
        produce = m.ProduceRequest.PartitionProduceData(records=kind(b"records"))
        request = m.ProduceRequest(
            topic_data=[m.ProduceRequest.TopicProduceData(name="t", partition_data=[produce])]
        )
        data = encode(request, 9)
        assert decode(m.ProduceRequest, 9, kind(data)) == request

    @pytest.mark.parametrize("kind", [bytes, bytearray])
    def test_records_are_views_without_a_copy(self, kind):
        produce = m.ProduceRequest.PartitionProduceData(records=b"records")
        request = m.ProduceRequest(
            topic_data=[m.ProduceRequest.TopicProduceData(name="t", partition_data=[produce])]
        )
        data = kind(encode(request, 9))
        records = decode(m.ProduceRequest, 9, data).topic_data[0].partition_data[0].records
        assert isinstance(records, memoryview)
        assert records.obj is data

    def test_bytes_fields_are_bytes_for_every_buffer_type(self):
        request = m.SyncGroupRequest(
            assignments=[m.SyncGroupRequest.SyncGroupRequestAssignment(member_id="m", assignment=b"a")]
        )
        found = decode(m.SyncGroupRequest, 3, bytearray(encode(request, 3)))
        assert type(found.assignments[0].assignment) is bytes

    def test_uuids(self):
        topic = Topic(topic_id=UUID(int=7), partitions=[Partition()])
        request = decode(m.FetchRequest, 13, encode(m.FetchRequest(topics=[topic, Topic()]), 13))
        assert [t.topic_id for t in request.topics] == [UUID(int=7), m.NO_UUID]

    def test_pieces_are_appended(self):
        pieces = [b"before"]
        write_pieces(m.HeartbeatResponse(error_code=1), 0, pieces)
        assert b"".join(pieces) == b"before\x00\x01"


class TestEnds:
    def test_bytes_left_over(self):
        data = encode(m.HeartbeatResponse(), 0)
        with pytest.raises(DecodeError, match="2 bytes are left over"):
            decode(m.HeartbeatResponse, 0, data + b"\x00\x00")

    def test_decode_from_allows_bytes_left_over(self):
        data = b"ab" + encode(m.HeartbeatResponse(error_code=5), 0) + b"cd"
        assert decode_from(m.HeartbeatResponse, 0, data, 2) == (m.HeartbeatResponse(error_code=5), 4)

    @pytest.mark.parametrize("version", [11, 12])
    def test_every_truncation(self, version):
        request = m.FetchRequest(topics=[Topic(topic="topic", partitions=[Partition()])], rack_id="rack")
        data = encode(request, version)
        for size in range(len(data)):
            with pytest.raises(DecodeError):
                decode(m.FetchRequest, version, data[:size])

    def test_a_truncated_last_field_gives_the_missing_bytes(self):
        with pytest.raises(DecodeError, match="HeartbeatRequest v0: truncated, 4 bytes are missing"):
            decode(m.HeartbeatRequest, 0, b"\x00\x01g\x00\x00\x00\x01\x00\x05m")


class TestTags:
    """KIP-482: `count (tag size bytes)*` after each struct."""

    EMPTY = encode(m.FetchRequest(), 12)[:-1]

    def test_unknown_tagged_fields_are_skipped(self):
        data = self.EMPTY + b"\x02" + b"\x63\x03abc" + uvarint(1000) + b"\x00"
        assert decode(m.FetchRequest, 12, data) == m.FetchRequest()

    def test_known_tagged_fields_between_unknown_ones(self):
        data = self.EMPTY + b"\x03" + b"\x63\x00" + b"\x00\x03\x03me" + b"\x64\x01z"
        assert decode(m.FetchRequest, 12, data) == m.FetchRequest(cluster_id="me")

    @pytest.mark.parametrize("size", [0, 2, 4])
    def test_a_wrong_size_of_a_tagged_field(self, size):
        data = self.EMPTY + b"\x01\x00" + bytes([size]) + b"\x03me" + b"\x00" * 4
        with pytest.raises(
            DecodeError, match="the tagged field ClusterId does not have the size given with its tag"
        ):
            decode(m.FetchRequest, 12, data)

    def test_a_tagged_field_beyond_the_end(self):
        with pytest.raises(DecodeError, match="truncated"):
            decode(m.FetchRequest, 12, self.EMPTY + b"\x01\x63\x7f")

    def test_a_malicious_count_of_tagged_fields(self):
        with pytest.raises(DecodeError):
            decode(m.FetchRequest, 12, self.EMPTY + b"\xff\xff\xff\xff\x0f" + b"\x63\x00" * 50)


class TestVarints:
    @given(st.integers(0, (1 << 32) - 1))
    def test_round_trip(self, number):
        data = uvarint(number)
        assert read_uvarint(b"." + data, 1) == (number, 1 + len(data))
        assert len(data) == max(1, -(-number.bit_length() // 7))

    @pytest.mark.parametrize("data", [b"\xff\xff\xff\xff\x1f", b"\x80\x80\x80\x80\x80\x01", b"\xff" * 20])
    def test_overflow(self, data):
        with pytest.raises(DecodeError, match="varint"):
            read_uvarint(data, 0)

    @pytest.mark.parametrize("data", [b"", b"\x80", b"\xff\xff"])
    def test_truncated(self, data):
        with pytest.raises(IndexError):
            read_uvarint(data, 0)

    def test_skipping_a_section(self):
        assert skip_tags(b"..\x00", 2) == 3
        assert skip_tags(b"\x02\x00\x01x\x05\x00", 0) == 6
