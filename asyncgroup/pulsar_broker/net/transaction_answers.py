"""The answers to commands of transactions, which have the ids of their transactions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from asyncgroup.pulsar.wire import commands as c

__all__ = ["TRANSACTION_ANSWERS", "transaction_answer"]

TRANSACTION_ANSWERS: Final[Mapping[type[c.Command], Any]] = {
    c.CommandNewTxn: c.CommandNewTxnResponse,
    c.CommandAddPartitionToTxn: c.CommandAddPartitionToTxnResponse,
    c.CommandAddSubscriptionToTxn: c.CommandAddSubscriptionToTxnResponse,
    c.CommandEndTxn: c.CommandEndTxnResponse,
    c.CommandEndTxnOnPartition: c.CommandEndTxnOnPartitionResponse,
    c.CommandEndTxnOnSubscription: c.CommandEndTxnOnSubscriptionResponse,
}
"""The type of the answer to each command."""


def transaction_answer(command: Any, **fields: Any) -> c.Command:
    """Return the answer to a command, with the id of its transaction; that of NEW_TXN has only the coordinator's when it fails."""
    if isinstance(command, c.CommandNewTxn):
        bits = {"txnid_most_bits": command.tc_id}
    else:
        bits = {"txnid_most_bits": command.txnid_most_bits, "txnid_least_bits": command.txnid_least_bits}
    answer: c.Command = TRANSACTION_ANSWERS[type(command)](request_id=command.request_id, **(bits | fields))
    return answer
