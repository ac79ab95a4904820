"""The transaction that a producer's records belong to: what may be sent in it, and what the loss of a record means.

State without I/O. It is a part of the `pipeline` of records; `transaction_client` waits for its events.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from asyncgroup.errors import AsyncGroupError, BrokerError
from asyncgroup.lifecycle import describe_error
from asyncgroup.log_events import log_fields
from asyncgroup.model import TopicPartition
from asyncgroup.producer.transactions.requests import PRODUCE, TransactionAction, action_of
from asyncgroup.producer.transactions.state import TransactionManager

__all__ = ["ProduceTransaction"]

_log = logging.getLogger("asyncgroup.producer")


class ProduceTransaction:
    """The transaction that batches belong to, as the sender and the router see it.

    `fail_records(error)` fails all records that are not done.
    """

    def __init__(self, manager: TransactionManager, fail_records: Callable[[AsyncGroupError], None]) -> None:
        self.manager = manager
        self._fail_records = fail_records
        self.partitions_wanted = asyncio.Event()
        """Set when there are new partitions to add (version 1)."""
        self.fenced = asyncio.Event()
        """Set when a broker has refused the producer's epoch."""

    def __repr__(self) -> str:
        return f"<ProduceTransaction {self.manager!r}>"

    @property
    def transactional_id(self) -> str:
        """The producer's name, which Produce requests carry."""
        return self.manager.transactional_id

    @property
    def is_v2(self) -> bool:
        """Whether Produce adds partitions to the transaction (KIP-890)."""
        return self.manager.is_v2

    def admit(self, tp: TopicPartition) -> bool:
        """Return whether Produce may be sent to a partition now; if not, it is added to the transaction first."""
        if self.manager.admit(tp):
            return True
        if self.manager.new_partitions:
            self.partitions_wanted.set()
        return False

    # --- failures -------------------------------------------------------------------------------------------------

    def is_fencing(self, code: int) -> bool:
        """Return whether an error code of Produce means that the producer is fenced."""
        return action_of(PRODUCE, code) is TransactionAction.FENCED

    def on_fenced(self) -> None:
        """A broker refused the epoch: all records fail once the coordinator was asked for the current one."""
        self.fenced.set()

    def on_record_failed(self, error: Exception) -> None:
        """A record that was accepted is lost: the transaction can only be aborted."""
        action = action_of(PRODUCE, error.code) if isinstance(error, BrokerError) else TransactionAction.ABORT
        if not isinstance(error, AsyncGroupError):  # a partitioner's, or a bug
            wrapped = AsyncGroupError(describe_error(error))
            wrapped.__cause__ = error
            error = wrapped
        if action is TransactionAction.FATAL:
            self.fail_fatally(error)
        else:
            self.fail(error, skips_end=action is TransactionAction.REINITIALIZE)

    def fail(self, error: AsyncGroupError, *, skips_end: bool = False) -> None:
        """The transaction can only be aborted: its other records fail at once, as nothing can be committed.

        `skips_end`: by InitProducerId, as the coordinator would refuse EndTxn.
        """
        if self.manager.fail(error, skips_end=skips_end):
            _log.info(
                "transactional id %s: the transaction must be aborted: %s",
                self.transactional_id,
                error,
                extra=log_fields("transaction_failed", transactional_id=self.transactional_id, error=error),
            )
            self._fail_records(self.manager.aborted_error())

    def fail_fatally(self, error: AsyncGroupError) -> None:
        """The producer can only be closed: all its records fail."""
        if self.manager.fail_fatally(error):
            _log.info(  # its callers get the error
                "transactional id %s: the producer can only be closed: %s",
                self.transactional_id,
                error,
                extra=log_fields("producer_failed", transactional_id=self.transactional_id, error=error),
            )
        self._fail_records(error)
