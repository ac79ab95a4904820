"""The form of what a Produce request has for a partition."""

from __future__ import annotations

import pytest

from asyncgroup.broker.errors import AppendError
from asyncgroup.broker.log.batch_validator import produced_batch
from asyncgroup.wire.records import BatchBuilder


def batch(*, transactional: bool = False) -> bytes:
    builder = BatchBuilder(transactional=transactional, producer_id=1)
    builder.append(0, None, b"v")
    return builder.build()


def test_the_flag_of_the_first_batch_counts() -> None:
    plain, transactional = batch(), batch(transactional=True)
    found = [produced_batch(data, 13).first for data in (transactional + plain, plain + transactional)]
    assert [one is not None and one.is_transactional for one in found] == [True, False]
    assert [produced_batch(data, 13).first for data in (transactional[:-1], b"", None)] == [None] * 3


def test_an_incomplete_second_batch_is_cut_off() -> None:
    one = batch()
    assert bytes(produced_batch(one + one[:-1], 13).batch.data) == one
    with pytest.raises(AppendError, match="more than one record batch"):
        _ = produced_batch(one + one, 13).batch
