"""FailedRows and QueueBatch without a queue: names of rows, their outcomes, records that cannot be rows."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncgroup.ack_window import AckWindow
from asyncgroup.errors import AsyncGroupError, ConfigError
from asyncgroup.model import Record, TopicPartition
from asyncgroup.spark import FailedRows
from asyncgroup.spark.bridge import queue_batch
from asyncgroup.spark.bridge.batches import RetryState
from asyncgroup.spark.bridge.failed_rows import Outcome, failed_records, row_keys
from asyncgroup.spark.bridge.queue_batch import QueueBatch
from asyncgroup.spark.ranges import OffsetRange
from asyncgroup.workqueue import Delivery, DeliveryState, Mode
from asyncgroup.workqueue.dispatcher import Dispatcher
from asyncgroup.workqueue.partition_work import PartitionWork
from tests.spark.bridge.fakes import records

Named = namedtuple("Named", "value offset topic partition")  # noqa: PYI024  as Row, whose fields are not typed

KEYS = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3), st.integers(0, 9))
SHAPES = [
    lambda key: key,
    list,
    lambda key: Record(*key),
    lambda key: Named(b"v", key[2], key[0], key[1]),
]


@given(batch=st.sets(KEYS), parts=st.lists(st.tuples(st.lists(KEYS), st.sampled_from(SHAPES))))
def test_each_row_has_the_outcome_of_the_one_that_names_it(batch: set[Any], parts: list[Any]) -> None:
    """Or an error, if a row is named twice or is not in the batch."""
    several = [FailedRows(map(shape, keys), delay=number) for number, (keys, shape) in enumerate(parts)]
    wanted = [key for keys, _ in parts for key in set(keys)]
    rows = {key: key for key in batch}
    if len(set(wanted)) < len(wanted) or not set(wanted) <= batch:
        with pytest.raises(ConfigError, match="rows="):
            failed_records(several, rows, lambda _: None)
        return
    found = failed_records(several, rows, lambda _: None)
    assert found == {
        key: Outcome(number, None, None) for number, (keys, _) in enumerate(parts) for key in keys
    }


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"delay": -1}, "delay=-1 is not allowed"),
        ({"reconsume_later": float("nan")}, "reconsume_later=nan is not allowed"),
        ({"reject": 1}, "reject=1 is not allowed: None or a string"),
        ({"delay": 1, "reject": "bad"}, "reject='bad' is not allowed: None with delay"),
        ({"delay": 0, "reconsume_later": 1}, "reconsume_later=1 is not allowed: None with delay"),
    ],
)
def test_invalid_outcomes(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        FailedRows([], **arguments)


def test_the_values_of_a_row_are_not_in_an_error() -> None:
    secret = namedtuple("Secret", "value")(b"secret")  # noqa: PYI024
    with pytest.raises(ConfigError) as found:
        row_keys([secret])
    assert "rows of type Secret" in str(found.value)
    assert "secret'" not in str(found.value)
    assert issubclass(FailedRows, AsyncGroupError)


def test_a_frame_without_the_columns() -> None:
    class Frame:
        columns = ("value", "offset")

        def select(self) -> None:
            raise AssertionError

        collect = select

    with pytest.raises(ConfigError, match="missing: topic, partition"):
        row_keys(Frame())


# -- records and rows ----------------------------------------------------------------------------------------------------


def batch_of(*found: Record) -> QueueBatch:
    dispatcher = Dispatcher(Mode.SHARED, lambda: 0.0, None, lambda _: 10.0)  # type: ignore[arg-type]
    dispatcher.outcomes.publisher = NoLetters()  # type: ignore[assignment]
    for tp in {TopicPartition(record.topic, record.partition) for record in found}:
        work = PartitionWork(tp, AckWindow(0))
        dispatcher.add_partition(work)
        dispatcher.offer(work, [record for record in found if (record.topic, record.partition) == tp])
    deliveries: list[Delivery] = []
    while (delivery := dispatcher.take()) is not None:
        deliveries.append(delivery)
    return QueueBatch(deliveries, 7, RetryState("raise", None), 0.0)  # type: ignore[arg-type]


class NoLetters:
    def is_last(self, _: int) -> bool:
        return False


async def test_rows_are_in_order_and_the_ranges_cover_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_batch, "MAX_CHUNK_ROWS", 3)
    batch = batch_of(*records(1, 5, 4), *records(0, 8, 2), *records(0, 20, 1))
    assert batch.batch_id == 7
    assert batch.batch_id.ranges == (OffsetRange("flights", 0, 8, 21), OffsetRange("flights", 1, 5, 9))
    found = await batch.to_arrow(include_headers=False)
    assert [part.num_rows for part in found] == [3, 3, 1]
    assert [offset for part in found for offset in part["offset"].to_pylist()] == [8, 9, 20, 5, 6, 7, 8]
    assert batch.bytes == sum(part.nbytes for part in found)


async def test_large_records_are_converted_one_after_another() -> None:
    large = [Record("t", 0, offset, 0, 0, None, bytes(queue_batch.MAX_CHUNK_BYTES)) for offset in range(3)]
    found = await batch_of(*large).to_arrow(include_headers=True)
    assert [part.num_rows for part in found] == [1, 1, 1]


async def test_a_record_that_cannot_be_a_row_is_nacked_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Its timestamp does not fit Arrow's microseconds: no batch with it could become a DataFrame."""
    good = records(0, 0, 3)
    batch = batch_of(*good, Record("flights", 0, 3, 2**62, 0, b"k", b"v"), *records(0, 4, 2))
    (found,) = await batch.to_arrow(include_headers=False)
    assert found["offset"].to_pylist() == [0, 1, 2, 4, 5]
    assert [delivery.state for delivery in batch.deliveries] == [
        *[DeliveryState.ACQUIRED] * 3,
        DeliveryState.NACKED,
        *[DeliveryState.ACQUIRED] * 2,
    ]
    assert ("flights", 0, 3) not in batch.by_key
    assert "cannot be a row" in caplog.text
    await batch.settle()
    assert [delivery.state.name for delivery in batch.deliveries].count("ACKED") == 5
