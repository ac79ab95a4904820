"""TransactionStatistics: requests for open transactions (Pulsar's `Transactions`).

GET  /admin/v3/transactions/transactionMetadata/MOST/LEAST          GET  /admin/v3/transactions/coordinators
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from asyncgroup.pulsar_broker.admin.http import HttpRefusal, HttpRequest
from asyncgroup.pulsar_broker.errors import ServerFailure
from asyncgroup.pulsar_broker.transactions.transaction_coordinators import TransactionCoordinators
from asyncgroup.pulsar_broker.transactions.transaction_metadata_store import TxnMeta

__all__ = ["TransactionStatistics"]


class TransactionStatistics:
    """What is shown of transactions that have not ended."""

    def __init__(self, coordinators: TransactionCoordinators) -> None:
        self._coordinators = coordinators

    def __repr__(self) -> str:
        return f"<TransactionStatistics of {self._coordinators!r}>"

    def handle(self, request: HttpRequest, rest: list[str]) -> Any:
        """Return the answer to a request."""
        match request.method, rest:
            case "GET", ["coordinators"]:
                return [{"id": number} for number in range(self._coordinators.count)]
            case "GET", ["transactionMetadata", most, least] if most.isdecimal() and least.isdecimal():
                try:
                    return _shown(self._coordinators.find((int(most), int(least))))
                except ServerFailure as failure:
                    raise HttpRefusal(HTTPStatus.NOT_FOUND, failure.text) from None
        raise HttpRefusal(HTTPStatus.PRECONDITION_FAILED, f"{request.method} {'/'.join(rest)} is not served")


def _shown(found: TxnMeta) -> dict[str, Any]:
    acked: dict[str, dict[str, Any]] = {}
    for topic, subscription in found.subscriptions:
        acked.setdefault(topic, {})[subscription] = {}
    most, least = found.id
    return {
        "txnId": f"({most},{least})",
        "openTimestamp": found.opened_at,
        "timeoutAt": found.deadline - found.opened_at,
        "status": "OPEN",
        "producedPartitions": {topic: {} for topic in found.topics},
        "ackedPartitions": acked,
    }
