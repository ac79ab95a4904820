"""TransactionBuffer: transactions that their coordinators have forgotten end with the next one that ends."""

from __future__ import annotations

from asyncgroup.pulsar_broker.log.topic_log import TopicLog
from asyncgroup.pulsar_broker.topics.transaction_buffer import TransactionBuffer
from tests.pulsar_broker.support import metadata


def test_any_number_of_forgotten_transactions_end_at_once() -> None:
    log = TopicLog()
    buffer = TransactionBuffer(log)
    for number in range(3_000):
        buffer.add((0, number), log.append(metadata(), b""))
    buffer.end((0, 5_000), 4_999, 0, commits=True)
    assert (buffer.open_count, buffer.aborted_count, buffer.committed_count) == (0, 3_000, 1)
    assert log.first_open is None


def test_a_transaction_is_forgotten_by_its_own_coordinator_only() -> None:
    log = TopicLog()
    buffer = TransactionBuffer(log)
    for transaction in ((0, 3), (1, 2), (1, 7), (0, 9)):
        buffer.add(transaction, log.append(metadata(), b""))
    buffer.end((1, 8), 2, 0, commits=True)
    assert buffer.is_open((1, 2)), "the one before it is open"
    buffer.end((0, 20), 8, 0, commits=True)
    assert [buffer.is_open(each) for each in ((0, 3), (1, 2), (1, 7), (0, 9))] == [False, False, True, True]
