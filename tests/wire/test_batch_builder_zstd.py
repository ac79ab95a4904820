"""zstd at its default level is compressed by the compiled builder; every other way must give the same records."""

from __future__ import annotations

import pytest

from asyncgroup.wire.batch_view import BatchView
from asyncgroup.wire.records import BatchBuilder, decode_batch

VALUES = [bytes([65 + n % 7]) * 300 for n in range(40)]


def build(codec: str, level: int | None, *, early: bool) -> tuple[BatchView, BatchBuilder]:
    builder = BatchBuilder(codec, level=level, transactional=True)
    for n, value in enumerate(VALUES):
        assert builder.append(1_000 + n, b"key", value, [("name", b"x")])
    if early:
        builder.compress()
    return BatchView(builder.build(7, 3, 11)), builder


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(("codec", "level"), [("zstd", None), ("zstd", 3), ("zstd", 1), ("lz4", None)])
def test_records_and_header_are_those_of_the_plain_batch(codec: str, level: int | None, early: bool) -> None:
    plain, plain_builder = build("none", None, early=False)
    batch, builder = build(codec, level, early=early)
    assert batch.crc_is_valid()
    assert decode_batch("t", 0, batch) == decode_batch("t", 0, plain)
    names = (
        "producer_id", "producer_epoch", "base_sequence", "record_count", "base_timestamp", "max_timestamp",
        "last_offset_delta", "is_transactional",
    )  # fmt: skip
    assert [getattr(batch, name) for name in names] == [getattr(plain, name) for name in names]
    assert batch.size < plain.size == builder.size == plain_builder.size


def test_the_levels_differ_only_in_the_payload() -> None:
    assert build("zstd", None, early=True)[0].data == build("zstd", 3, early=True)[0].data
