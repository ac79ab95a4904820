"""A batch whose records cannot be decoded: its span has no links, and the reader gets the error."""

from __future__ import annotations

import pytest

from asyncgroup import CorruptRecordsError
from tests.consumer.support import batch, feed, make_consumer, with_bad_content
from tests.telemetry.spans import Sdk


async def test_the_reader_gets_the_error_of_a_batch_that_has_no_links(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sdk = Sdk()
    plain, traced = make_consumer(), make_consumer(hooks=[sdk.traces])
    for consumer in (plain, traced):
        feed(consumer, batch(0, count=3), with_bad_content(3, 3), high_watermark=9)
        batches = consumer.batches(max_records=3)
        assert [record.offset for record in await anext(batches)] == [0, 1, 2]
        with pytest.raises(CorruptRecordsError):  # of a batch that is decoded when its records are read
            list(await anext(batches))
        assert consumer.position == 3
        feed(consumer, with_bad_content(3, 3), high_watermark=9)
        with pytest.raises(CorruptRecordsError):  # from now on before it is delivered
            await anext(batches)
        consumer.seek(6)
        feed(consumer, batch(6, count=3), high_watermark=9)
        assert [record.offset for record in await anext(batches)] == [6, 7, 8]
        await consumer.aclose()
    assert "hook" not in caplog.text
    assert [(span.attributes or {})["messaging.batch.message_count"] for span in sdk.spans] == [3, 3, 3]
    assert [span.links for span in sdk.spans] == [()] * 3
