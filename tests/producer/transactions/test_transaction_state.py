"""The state of a transactional producer: which call is allowed when, and a model of the coordinator beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from asyncgroup.errors import (
    AsyncGroupError,
    ClosedError,
    NoTransactionError,
    TransactionAbortedError,
    TransactionInProgressError,
)
from asyncgroup.model import TopicPartition
from asyncgroup.producer.transactions.state import TransactionManager, TransactionPhase
from tests.profiles import examples

PARTITIONS = [TopicPartition("orders", number) for number in range(3)]


def manager_in(phase: TransactionPhase, *, is_v2: bool = True) -> TransactionManager:
    """Return a manager in a state."""
    manager = TransactionManager("orders-1")
    if phase is TransactionPhase.UNINITIALIZED:
        return manager
    manager.initialize(1000, 0, is_v2=is_v2)
    if phase is TransactionPhase.READY:
        return manager
    manager.begin()
    steps: dict[TransactionPhase, Callable[[], object]] = {
        TransactionPhase.IN_TRANSACTION: lambda: None,
        TransactionPhase.ABORTABLE_ERROR: lambda: manager.fail(AsyncGroupError("lost")),
        TransactionPhase.COMMITTING: manager.begin_commit,
        TransactionPhase.ABORTING: manager.begin_abort,
        TransactionPhase.DETACHED: lambda: (manager.begin_commit(), manager.detach()),
        TransactionPhase.FATAL_ERROR: lambda: manager.fail_fatally(AsyncGroupError("fenced")),
        TransactionPhase.CLOSED: manager.close,
    }
    steps[phase]()
    assert manager.state is phase
    return manager


P = TransactionPhase
BUSY = TransactionInProgressError
NONE = NoTransactionError
TABLE: dict[TransactionPhase, tuple[Any, Any, Any]] = {
    # state: what begin, begin_commit and a record raise
    P.UNINITIALIZED: (ClosedError, ClosedError, ClosedError),
    P.READY: (None, NONE, NONE),
    P.IN_TRANSACTION: (BUSY, None, None),
    P.ABORTABLE_ERROR: (TransactionAbortedError, TransactionAbortedError, TransactionAbortedError),
    P.COMMITTING: (BUSY, NONE, NONE),
    P.ABORTING: (BUSY, NONE, NONE),
    P.DETACHED: (ClosedError, ClosedError, ClosedError),
    P.FATAL_ERROR: (AsyncGroupError, AsyncGroupError, AsyncGroupError),
    P.CLOSED: (ClosedError, ClosedError, ClosedError),
}


def test_every_state_is_in_the_table() -> None:
    assert set(TABLE) == set(TransactionPhase)


@pytest.mark.parametrize("phase", TransactionPhase)
def test_what_each_state_allows(phase: TransactionPhase) -> None:
    begin, commit, _ = TABLE[phase]
    for wanted, call in ((begin, "begin"), (commit, "begin_commit")):
        manager = manager_in(phase)
        if wanted is None:
            getattr(manager, call)()
            continue
        with pytest.raises(wanted) as raised:
            getattr(manager, call)()
        assert type(raised.value) is wanted
        assert manager.state is phase


@pytest.mark.parametrize("phase", [phase for phase, row in TABLE.items() if row[2] is not None])
def test_why_a_record_is_refused(phase: TransactionPhase) -> None:
    refusal = manager_in(phase).refusal()
    assert type(refusal) is TABLE[phase][2]
    assert refusal is not manager_in(phase).error


def test_the_errors_name_the_transactional_id_and_the_cause() -> None:
    manager = manager_in(P.ABORTABLE_ERROR)
    assert (
        str(manager.refusal())
        == "transactional id 'orders-1': the transaction is aborted: AsyncGroupError: lost"
    )
    assert manager.refusal().__cause__ is manager.error
    assert str(manager_in(P.READY).refusal()) == (
        "transactional id 'orders-1': a record is written in a transaction only "
        "(`async with producer.transaction()`); the producer is ready"
    )


def test_a_failed_addition_keeps_the_earlier_partitions() -> None:
    """A mistake of franz-go before 1.21.4."""
    manager = manager_in(P.IN_TRANSACTION, is_v2=False)
    assert not manager.admit(PARTITIONS[0])
    manager.on_partitions_added([PARTITIONS[0]])
    assert not manager.admit(PARTITIONS[1])
    manager.fail(AsyncGroupError("not added"))
    assert manager.is_started
    assert manager.partitions == {PARTITIONS[0]}


def test_only_the_first_failure_is_kept() -> None:
    manager = manager_in(P.IN_TRANSACTION)
    first, second = AsyncGroupError("first"), AsyncGroupError("second")
    assert manager.fail(first)
    assert not manager.fail(second)
    assert manager.error is first
    manager.fail_fatally(second)
    manager.fail_fatally(first)
    assert manager.error is second


@pytest.mark.parametrize("call", ["initialize", "complete", "close"])
def test_a_fatal_error_stays(call: str) -> None:
    manager = manager_in(P.FATAL_ERROR)
    if call == "initialize":
        manager.initialize(1, 1, is_v2=True)
    elif call == "complete":
        manager.complete(producer=(1, 1), is_v2=True)
    else:
        manager.close()
        assert manager.state is P.CLOSED
        return
    assert manager.state is P.FATAL_ERROR


@pytest.mark.parametrize("is_v2", [False, True])
@pytest.mark.parametrize("has_gap", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_which_abort_needs_the_next_epoch(is_v2: bool, has_gap: bool, fails: bool) -> None:
    """In version 2 EndTxn returns it."""
    manager = manager_in(P.IN_TRANSACTION, is_v2=is_v2)
    manager.on_group_added()
    if fails:
        manager.fail(AsyncGroupError("lost"))
    manager.begin_abort(has_gap=has_gap)
    manager.complete(producer=(1000, 1) if is_v2 else None, is_v2=is_v2)
    needs_bump = (fails or has_gap) and not is_v2
    assert manager.state is (P.UNINITIALIZED if needs_bump else P.READY)


class Coordinator:
    """A small model of the transaction coordinator, and of the sequence numbers that brokers accept."""

    def __init__(self) -> None:
        self.epoch = 0
        self.partitions: set[TopicPartition] = set()
        self.committed = 0
        self.suspect_epochs: set[int] = set()
        """Epochs under which a batch has an unknown result: a later transaction must not use them."""


class Program(RuleBasedStateMachine):
    """Random calls and failures; the rules of `TransactionClient` in short."""

    def __init__(self) -> None:
        super().__init__()
        self.coordinator = Coordinator()
        self.manager = TransactionManager("orders-1")
        self.is_v2 = False
        self.written: set[TopicPartition] = set()
        self.failed = False

    # --- calls ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.manager.state is P.UNINITIALIZED)
    @rule()
    def initialize(self) -> None:
        self._bump()

    def _bump(self) -> None:
        self.coordinator.partitions.clear()
        self.coordinator.epoch += 1
        self.manager.initialize(1000, self.coordinator.epoch, is_v2=self.is_v2)

    @rule(level=st.sampled_from([None, None, None, False, True]))
    def upgrade_or_downgrade(self, level: bool | None) -> None:
        self.is_v2 = self.is_v2 if level is None else level

    @precondition(lambda self: self.manager.state is P.READY)
    @rule()
    def begin(self) -> None:
        self.manager.begin()
        self.written.clear()
        self.failed = False

    @precondition(lambda self: self.manager.state in (P.IN_TRANSACTION, P.COMMITTING))
    @rule(tp=st.sampled_from(PARTITIONS), result=st.sampled_from(["written", "written", "lost", "not added"]))
    def produce(self, tp: TopicPartition, result: str) -> None:
        if not self.manager.admit(tp):
            assert not self.manager.is_v2
            if result == "not added":
                self.failed = True
                self.manager.fail(AsyncGroupError("not added"))
                return
            self.coordinator.partitions.add(tp)
            self.manager.on_partitions_added([tp])
            assert self.manager.admit(tp)
        assert self.manager.epoch == self.coordinator.epoch
        assert self.coordinator.epoch not in self.coordinator.suspect_epochs, (
            "a batch could be taken for another"
        )
        if self.manager.is_v2:
            self.coordinator.partitions.add(tp)
        assert tp in self.coordinator.partitions, "Produce before AddPartitionsToTxn"
        if result == "lost":
            self.coordinator.suspect_epochs.add(self.coordinator.epoch)
            self.failed = True
            self.manager.fail(AsyncGroupError("lost"))
        else:
            self.written.add(tp)

    @precondition(lambda self: self.manager.state is P.IN_TRANSACTION)
    @rule()
    def begin_commit(self) -> None:
        self.manager.begin_commit()

    @precondition(lambda self: self.manager.state is P.COMMITTING and not self.manager.new_partitions)
    @rule()
    def commit(self) -> None:
        assert not self.failed, "a transaction with a lost record was committed"
        assert self.written <= self.coordinator.partitions
        if self.manager.is_started:
            assert self.manager.epoch == self.coordinator.epoch
            self.coordinator.committed += 1
        self._end()

    @precondition(lambda self: self.manager.is_open or self.manager.state is P.COMMITTING)
    @rule(has_gap=st.booleans())
    def abort(self, has_gap: bool) -> None:
        has_gap = has_gap and bool(self.written)
        if has_gap:
            self.coordinator.suspect_epochs.add(self.coordinator.epoch)
        self.manager.begin_abort(has_gap=has_gap)
        assert not self.manager.new_partitions
        self._end()

    def _end(self) -> None:
        assert self.manager.is_started or not self.coordinator.partitions, "left open at the coordinator"
        producer = None
        if self.manager.is_started:
            self.coordinator.partitions.clear()
            if self.manager.is_v2:
                self.coordinator.epoch += 1
                producer = (1000, self.coordinator.epoch)
        was_v2 = self.manager.is_v2
        self.manager.complete(producer=producer, is_v2=self.is_v2)
        if self.is_v2 and not was_v2:
            assert self.manager.state is P.UNINITIALIZED, "an upgrade needs the next epoch first"

    @precondition(lambda self: self.manager.state is not P.UNINITIALIZED)
    @rule(moment=st.integers(0, 99))
    def fence(self, moment: int) -> None:
        if moment == 57:
            self.manager.fail_fatally(AsyncGroupError("fenced"))

    # --- invariants -------------------------------------------------------------------------------------------------

    @invariant()
    def nothing_stays_from_the_last_transaction(self) -> None:
        if self.manager.state is P.READY:
            assert not self.manager.partitions
            assert not self.manager.new_partitions
            assert not self.manager.is_started
            assert self.manager.error is None

    @invariant()
    def an_error_is_known(self) -> None:
        if self.manager.state in (P.ABORTABLE_ERROR, P.FATAL_ERROR):
            assert self.manager.error is not None


Program.TestCase.settings = settings(max_examples=examples(240), stateful_step_count=40, deadline=None)
TestRandomPrograms = Program.TestCase
