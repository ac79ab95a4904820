"""The records of the transactional sink as text, and its decisions."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st

from asyncgroup.spark.sink.transactions.decisions import (
    SlotResult,
    check_owner,
    must_store,
    to_abort,
    transactions_to_commit,
    unfinished_transactions,
)
from asyncgroup.spark.sink.transactions.errors import TransactionalSinkError
from asyncgroup.spark.sink.transactions.records import (
    BatchRecord,
    QueryBatch,
    SlotTransaction,
    decode_batch,
    decode_record,
    encode_batch,
    encode_record,
    newest_record,
)

BATCH = QueryBatch("q", 5)
NUMBER = st.integers(0, 2**63 - 1)
TRANSACTIONS = st.lists(
    st.builds(SlotTransaction, st.integers(0, 5000), NUMBER, st.integers(0, 32767), st.integers(0, 2)),
    max_size=5,
)


def transaction(slot: int, epoch: int = 3) -> SlotTransaction:
    return SlotTransaction(slot, 1000 + slot, epoch, 2)


def record(
    *transactions: SlotTransaction, rows: tuple[int, ...] = (1, 1), batch: QueryBatch = BATCH
) -> BatchRecord:
    return BatchRecord(batch, 1, rows, transactions, "t")


# --- text -------------------------------------------------------------------------------------------------------------


@given(st.text(), NUMBER, st.lists(NUMBER, max_size=5), TRANSACTIONS)
def test_records_survive_as_text(
    query: str, number: int, rows: list[int], transactions: list[SlotTransaction]
) -> None:
    batch = QueryBatch(query, number)
    stored = BatchRecord(batch, number, tuple(rows), tuple(transactions), "t")
    assert decode_record("t", number, encode_record(stored)) == stored
    assert decode_batch(encode_batch(batch)) == batch


@pytest.mark.parametrize(
    "text",
    ["", "text", "[]", '{"query":"q","batch":1}', '{"asyncgroup-sink":2,"query":"q","batch":1,"slots":""}',
     '{"asyncgroup-sink":1,"query":"q"}', '{"asyncgroup-sink":1,"query":"q","batch":1,"slots":"eA=="}',
     '{"asyncgroup-sink":1,"query":"q","batch":1,"slots":"eJxjAwAABwAH"}'],
)  # fmt: skip
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(TransactionalSinkError, match=r"use another transactional\.id\.prefix"):
        decode_record("t", 1, text)


def test_the_newest_record_of_several_topics() -> None:
    old, new = record(), BatchRecord(QueryBatch("r", 0), 2, (), (), "u")
    commits = {each.topic: (each.number, encode_record(each)) for each in (old, new)}
    assert newest_record(commits) == new
    assert newest_record({}) is None


def test_seven_hundred_slots_fit_into_a_commit() -> None:
    """With the broker's default limit, and producer ids from the blocks of three brokers."""
    rng = random.Random(1)
    many = [SlotTransaction(slot, slot % 3 * 91_000 + slot, rng.randrange(3000), 2) for slot in range(700)]
    stored = record(*many, rows=tuple(rng.randrange(5000, 6000) for _ in many))
    assert len(encode_record(stored)) < 4096


# --- decisions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (BATCH, None),
        (QueryBatch("q", 6), None),
        (QueryBatch("r", 0), None),
        (QueryBatch("r", 1), "used by another query: q has written batch 5"),
        (QueryBatch("q", 4), "restored from an older copy"),
    ],
)
def test_owners(batch: QueryBatch, words: str | None) -> None:
    check_owner("p", None, batch)
    if words is None:
        check_owner("p", record(), batch)
    else:
        with pytest.raises(TransactionalSinkError, match=words):
            check_owner("p", record(), batch)


def test_transactions_of_a_record_are_unfinished_until_the_next_batch() -> None:
    stored = record(transaction(0))
    assert unfinished_transactions(stored, BATCH) == stored.transactions
    assert unfinished_transactions(stored, QueryBatch("r", 0)) == stored.transactions
    assert unfinished_transactions(stored, QueryBatch("q", 6)) == ()
    assert unfinished_transactions(None, BATCH) == ()


def test_what_a_repeated_batch_commits() -> None:
    stored = record(transaction(0), transaction(1))
    done, again = SlotResult(1, committed=True), SlotResult(1, transaction(1, 9))
    new = [SlotResult(1, transaction(0, 9)), again]

    def commits(results: list[SlotResult], *elsewhere: int) -> list[int]:
        chosen = transactions_to_commit("p", stored, BATCH, results, elsewhere)
        assert {each.producer_epoch for each in chosen} <= {9}
        return [each.slot for each in chosen]

    assert commits([done, done]) == []  # complete
    assert commits([done], 1) == []  # complete, with a slot that has no task now
    assert commits([done, done, SlotResult(4, transaction(2, 9))]) == []  # complete: the third is aborted
    assert commits([done, again]) == [1]
    assert commits(new) == [0, 1]  # nothing was committed
    assert commits([SlotResult(7, transaction(0, 9))]) == [0]  # nothing was committed: any plan
    with pytest.raises(TransactionalSinkError, match=r"1 of 2 transactions.*3 tasks instead of 2"):
        commits([done, again, SlotResult(0)])
    with pytest.raises(TransactionalSinkError, match=r"2 rows instead of 1 in task 1"):
        commits([done, SlotResult(2, transaction(1, 9))])
    with pytest.raises(TransactionalSinkError, match=r"1 tasks instead of 2"):
        commits([SlotResult(1, transaction(0, 9))], 1)


def test_a_record_is_stored_for_transactions_and_new_owners() -> None:
    assert must_store(None, BATCH, [transaction(0)])
    assert not must_store(None, BATCH, [])
    assert not must_store(record(), QueryBatch("q", 6), [])
    assert must_store(record(), QueryBatch("r", 0), [])


def test_transactions_of_a_record_are_not_aborted() -> None:
    results = [SlotResult(1, transaction(0)), None, SlotResult(0), SlotResult(1, transaction(3))]
    assert to_abort(None, results) == (transaction(0), transaction(3))
    assert to_abort(record(transaction(0), transaction(3, 9)), results) == (transaction(3),)
