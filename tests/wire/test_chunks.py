"""The headers of chunks."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from asyncgroup.wire.chunks import ChunkInfo, is_chunk, read_chunk_info, split_value

INFO = ChunkInfo("a1-7", 2, 3, 1000)


def test_headers_are_text_that_any_client_can_read():
    assert INFO.headers() == [
        ("ag-chunk-uuid", b"a1-7"),
        ("ag-chunk-id", b"2"),
        ("ag-chunk-count", b"3"),
        ("ag-chunk-size", b"1000"),
    ]


def test_headers_of_the_record_follow():
    assert read_chunk_info([*INFO.headers(), ("trace", b"1"), ("ag-chunk-id", b"9")]) == INFO


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("trace", b"1")],
        INFO.headers()[:3],
        [("trace", b"1"), *INFO.headers()],
        INFO._replace(chunk_id=3).headers(),
        INFO._replace(chunk_count=1001).headers(),
        INFO._replace(uuid="").headers(),
        INFO._replace(chunk_id=-1).headers(),
        INFO._replace(total_size=10**19).headers(),
        [*INFO.headers()[:3], ("ag-chunk-size", None)],
        [*INFO.headers()[:3], ("ag-chunk-size", b"1e3")],
    ],
)
def test_a_record_with_other_headers_is_no_chunk(headers):
    assert read_chunk_info(headers) is None


def test_a_record_that_may_be_a_chunk():
    assert is_chunk(INFO.headers())
    assert not is_chunk([])
    assert not is_chunk(INFO.headers()[:3])
    assert not is_chunk([("trace", b"1"), *INFO.headers()])


@given(st.binary(min_size=1, max_size=100), st.integers(1, 40))
def test_a_value_is_split_completely(value, room):
    chunks = list(split_value("u", value, room))
    assert b"".join(part for _, part in chunks) == value
    assert all(0 < len(part) <= room for _, part in chunks)
    assert [info for info, _ in chunks] == [
        ChunkInfo("u", number, len(chunks), len(value)) for number in range(len(chunks))
    ]
