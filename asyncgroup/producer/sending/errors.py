"""Errors of records: copies that name the place, and those of a batch that was rejected because of single records (KIP-467)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from asyncgroup.errors import (
    AsyncGroupError,
    BatchRejectedError,
    BrokerError,
    ErrorCode,
    RecordRejectedError,
)
from asyncgroup.lifecycle import add_note, copy_error
from asyncgroup.model import TopicPartition
from asyncgroup.producer.sending.requests import PartitionProduceResponse

__all__ = ["RecordErrors", "batch_error", "describe_rejection", "named_error", "record_errors"]

_OF_RECORDS: Final = frozenset(
    {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP}
)
"""The error codes that are about the contents of a record."""


def named_error(error: Exception, place: TopicPartition | str) -> Exception:
    """Return a copy of an error that names a partition, or a topic if no partition was chosen.

    A partitioner's own error is copied as it is, with a note.
    """
    made = copy_error(error)
    if str(place) in str(made):
        return made
    if isinstance(made, AsyncGroupError):
        made.args = (f"records for {place}: {made}", *made.args[1:])
    else:
        add_note(made, f"raised for a record for {place}")
    return made


class RecordErrors(NamedTuple):
    """The errors of the records of a batch."""

    by_index: Mapping[int, RecordRejectedError]
    """Of the records that were rejected, by their places in the batch."""
    others: BrokerError
    """Of all others, which were not written because of those."""


def batch_error(code: int, count: int, what: str, detail: str | None) -> BrokerError:
    """Return the error of a batch of `count` records; that of one record alone may be about its contents."""
    is_of_record = count == 1 and code in _OF_RECORDS
    return (RecordRejectedError if is_of_record else BrokerError)(code, what, detail)


def record_errors(
    tp: TopicPartition, count: int, response: PartitionProduceResponse, *, may_be_written: bool
) -> RecordErrors | None:
    """Return the errors for a batch of `count` records that was rejected; None if the response names none of them.

    `may_be_written`: the result of an attempt is unknown. As in Java (`Sender.failBatch`) the code of the response is that of
    the record if there is one only; of several records it may be another one's, so theirs is INVALID_RECORD.
    """
    rejected = {
        bad.batch_index: bad.batch_index_error_message
        for bad in response.record_errors
        if 0 <= bad.batch_index < count
    }
    if not rejected:
        return None
    code = response.error_code if len(rejected) == 1 else ErrorCode.INVALID_RECORD
    by_index: dict[int, RecordRejectedError] = {}
    for index, text in rejected.items():
        by_index[index] = RecordRejectedError(code, f"record for {tp}", text or response.error_message)
        by_index[index].may_be_written = may_be_written
    others = BatchRejectedError(
        response.error_code, f"record for {tp}", sorted(rejected), may_be_written=may_be_written
    )
    return RecordErrors(by_index, others)


def describe_rejection(response: PartitionProduceResponse) -> str | None:
    """Return the broker's message about a rejected batch and its records, or None."""
    messages = [response.error_message] if response.error_message else []
    messages += [
        f"record {bad.batch_index}: {bad.batch_index_error_message}" for bad in response.record_errors
    ]
    return "; ".join(messages) or None
