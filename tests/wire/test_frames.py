"""Frames: headers compared with kio's, and the exceptions to the rules of header versions."""

from __future__ import annotations

import io
import struct

import pytest
from hypothesis import given, strategies as st
from kio.serial import entity_writer
from kio.static.primitive import i16, i32

from asyncgroup.broker.net.frames import (
    DecodedRequestHeader,
    decode_request_body,
    decode_request_header,
    encode_response,
)
from asyncgroup.errors import DecodeError, UnsupportedVersionError
from asyncgroup.wire import messages as m
from asyncgroup.wire.apis import API_BY_NAME, APIS
from asyncgroup.wire.codec import decode, decode_response, encode, encode_request, read_correlation_id
from asyncgroup.wire.schema import message_spec
from tests.profiles import thinned
from tests.wire.kio_oracle import KNOWN_TO_BOTH, Oracle
from tests.wire.strategies import few_examples

CORRELATION_IDS = st.integers(-(1 << 31), (1 << 31) - 1)
CLIENT_IDS = st.none() | st.text(max_size=8) | st.just("c" * 200)

REQUESTS = [pair for pair in KNOWN_TO_BOTH if message_spec(pair[0]).kind == "request"]
RESPONSES = [pair for pair in KNOWN_TO_BOTH if message_spec(pair[0]).kind == "response"]


def kio_bytes(entity: object) -> bytes:
    with io.BytesIO() as buffer:
        entity_writer(type(entity))(buffer, entity)
        return buffer.getvalue()


@pytest.mark.parametrize(("name", "version"), thinned(REQUESTS))
def test_request_frames(name, version):
    header_class = Oracle(name, version).cls.__header_schema__
    message = getattr(m, name)()
    body = encode(message, version)

    @few_examples(6)
    @given(CORRELATION_IDS, CLIENT_IDS)
    def check(correlation_id: int, client_id: str | None) -> None:
        frame = b"".join(encode_request(message, version, correlation_id, client_id))
        header = kio_bytes(
            header_class(
                request_api_key=i16(message.API_KEY),
                request_api_version=i16(version),
                correlation_id=i32(correlation_id),
                client_id=client_id,
            )
        )
        assert frame == struct.pack(">i", len(header + body)) + header + body
        read = decode_request_header(frame[4:])
        assert read == DecodedRequestHeader(message.API_KEY, version, correlation_id, client_id, len(header))
        assert decode_request_body(read, frame[4:]) == message

    check()


@pytest.mark.parametrize(("name", "version"), thinned(RESPONSES))
def test_response_frames(name, version):
    header_class = Oracle(name, version).cls.__header_schema__
    message = getattr(m, name)()
    body = encode(message, version)

    @few_examples(3)
    @given(CORRELATION_IDS)
    def check(correlation_id: int) -> None:
        frame = b"".join(encode_response(message, version, correlation_id))
        header = kio_bytes(header_class(correlation_id=i32(correlation_id)))
        assert frame == struct.pack(">i", len(header + body)) + header + body
        assert read_correlation_id(frame[4:]) == correlation_id
        assert decode_response(type(message), version, frame[4:]) == message

    check()


def test_the_api_versions_response_has_header_version_0():
    frame = b"".join(encode_response(m.ApiVersionsResponse(), 4, 7))
    assert frame[4:] == b"\x00\x00\x00\x07" + encode(m.ApiVersionsResponse(), 4)


def test_no_piece_is_empty():
    """From Python 3.12 on, asyncio's `writelines` never finishes an empty last piece."""
    for name, version in REQUESTS:
        assert all(encode_request(getattr(m, name)(), version, 7, "")), (name, version)
    for name, version in RESPONSES:
        assert all(encode_response(getattr(m, name)(), version, 7)), (name, version)
    fetch = m.FetchResponse.FetchableTopicResponse
    for records in (b"", memoryview(b"")):
        response = m.FetchResponse(
            responses=[fetch(partitions=[m.FetchResponse.PartitionData(records=records)])]
        )
        assert all(encode_response(response, 18, 7))


def test_large_payloads_are_not_copied():
    payload = memoryview(b"x" * 100_000)
    response = m.FetchResponse(
        responses=[
            m.FetchResponse.FetchableTopicResponse(
                partitions=[m.FetchResponse.PartitionData(records=payload)]
            )
        ]
    )
    assert any(piece is payload for piece in encode_response(response, 12, 1))


def test_apis():
    assert API_BY_NAME["Fetch"] is APIS[1]
    fetch = APIS[1]
    assert (fetch.key, fetch.request, fetch.response) == (1, m.FetchRequest, m.FetchResponse)
    assert (str(fetch.versions), fetch.flexible_from) == ("4-18", 12)


def test_an_unstable_version_can_be_decoded_but_is_not_offered():
    assert str(API_BY_NAME["InitProducerId"].versions) == "0-5"
    assert (
        decode(m.InitProducerIdRequest, 6, encode(m.InitProducerIdRequest(), 6)) == m.InitProducerIdRequest()
    )


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_requests_and_responses_have_the_same_key_and_versions(api):
    assert api.request.API_KEY == api.response.API_KEY == api.key
    request, response = message_spec(api.request.NAME), message_spec(api.response.NAME)
    assert (request.versions, request.flexible) == (response.versions, response.flexible)
    known = range(request.versions.high + 1)
    assert [v >= api.flexible_from for v in known] == [v in request.flexible for v in known]


class TestRequestHeaders:
    def test_the_header_of_an_unknown_api(self):
        frame = struct.pack(">hhi", 999, 3, 17) + b"anything"
        assert decode_request_header(frame) == DecodedRequestHeader(999, 3, 17, None, len(frame))

    @pytest.mark.parametrize(("version", "body"), [(-1, 11), (5, 12), (32767, 12)])
    def test_an_unknown_newer_version_has_the_newest_header(self, version, body):
        """The first request of a newer client is ApiVersions; it is answered with error 35 in version 0 (KIP-511)."""
        frame = struct.pack(">hhi", 18, version, 17) + b"\x00\x01c\x00more"
        assert decode_request_header(frame) == DecodedRequestHeader(18, version, 17, "c", body)

    def test_the_header_of_an_unsupported_older_version(self):
        frame = struct.pack(">hhi", 0, 2, 17) + b"\x00\x02me"
        header = decode_request_header(frame)
        assert header == DecodedRequestHeader(0, 2, 17, "me", 12)
        with pytest.raises(UnsupportedVersionError, match="version 2 is not in 3-13"):
            decode_request_body(header, frame)

    def test_the_body_of_an_unknown_api_is_an_error(self):
        with pytest.raises(UnsupportedVersionError, match="API key 999 is unknown"):
            decode_request_body(DecodedRequestHeader(999, 0, 1, None, 8), b"\x00" * 8)

    def test_unknown_tagged_fields_are_skipped(self):
        body = encode(m.HeartbeatRequest(group_id="g"), 4)
        frame = struct.pack(">hhi", 12, 4, 17) + b"\x00\x01c" + b"\x02\x00\x01x\x05\x02yz" + body
        header = decode_request_header(frame)
        assert header.client_id == "c"
        assert decode_request_body(header, frame) == m.HeartbeatRequest(group_id="g")

    @pytest.mark.parametrize(
        "frame",
        [
            b"",
            b"\x00\x12\x00\x03\x00",
            struct.pack(">hhi", 18, 3, 1),
            struct.pack(">hhi", 18, 0, 1) + b"\x00\x05me",
            struct.pack(">hhi", 18, 0, 1) + b"\x00\x02\xff\xfe",
            struct.pack(">hhi", 18, 3, 1) + b"\xff\xff\xff\xff\xff\xff\x0f",
            struct.pack(">hhi", 18, 3, 1) + b"\xff\xff\x01\x00\xff\xff\xff\xff\x0f",
            struct.pack(">hhi", 18, 3, 1) + b"\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        ],
    )
    def test_malformed(self, frame):
        with pytest.raises(DecodeError):
            decode_request_header(frame)

    @given(st.binary(max_size=40) | st.binary(max_size=30).map(lambda tail: struct.pack(">hh", 18, 3) + tail))
    def test_random_bytes(self, frame):
        try:
            header = decode_request_header(frame)
        except DecodeError:
            return
        assert header.body <= len(frame)

    def test_a_client_id_that_is_too_long(self):
        with pytest.raises(UnsupportedVersionError, match="client id has 40000 bytes"):
            encode_request(m.HeartbeatRequest(), 4, 1, "c" * 40_000)


class TestResponseHeaders:
    def test_too_short_for_a_correlation_id(self):
        with pytest.raises(DecodeError, match="3 bytes"):
            read_correlation_id(b"\x00\x00\x00")

    def test_an_unsupported_api_versions_version_is_answered_in_version_0(self):
        """KIP-511: in all requested versions."""
        answer = m.ApiVersionsResponse(
            error_code=35,
            api_keys=[m.ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=3)],
        )
        frame = b"".join(encode_response(answer, 0, 7))[4:]
        assert decode_response(m.ApiVersionsResponse, 4, frame) == answer

    @pytest.mark.parametrize(
        ("version", "rest"), [(3, b"\x00"), (4, b"\x01"), (4, b"\x00\x01"), (4, b"\x00\x00")]
    )
    def test_bytes_left_over(self, version, rest):
        frame = b"".join(encode_response(m.HeartbeatResponse(), version, 7))[4:]
        with pytest.raises(
            DecodeError, match=f"HeartbeatResponse v{version}: {len(rest)} bytes are left over"
        ):
            decode_response(m.HeartbeatResponse, version, frame + rest)

    def test_one_more_empty_section_of_tagged_fields(self):
        """As librdkafka's mock cluster sends it; Java ignores bytes after a response."""
        frame = b"".join(encode_response(m.HeartbeatResponse(error_code=27), 4, 7))[4:]
        assert decode_response(m.HeartbeatResponse, 4, frame + b"\x00") == m.HeartbeatResponse(error_code=27)

    def test_truncated_tagged_fields(self):
        with pytest.raises(DecodeError, match="response header of HeartbeatResponse v4"):
            decode_response(m.HeartbeatResponse, 4, b"\x00\x00\x00\x07")

    def test_unknown_tagged_fields_are_skipped(self):
        frame = b"\x00\x00\x00\x07" + b"\x01\x03\x02yz" + encode(m.HeartbeatResponse(error_code=27), 4)
        assert decode_response(m.HeartbeatResponse, 4, frame) == m.HeartbeatResponse(error_code=27)

    @given(st.binary(max_size=30), st.sampled_from([(m.HeartbeatResponse, 0), (m.HeartbeatResponse, 4)]))
    def test_random_bytes(self, frame, which):
        try:
            decode_response(*which, frame)
        except DecodeError:
            return
