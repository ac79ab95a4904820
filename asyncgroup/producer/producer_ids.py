"""Producer ids: InitProducerId without a transactional id (KIP-98, KIP-360)."""

from __future__ import annotations

from typing import Final

from asyncgroup.cluster.network_client import NetworkClient
from asyncgroup.error_codes import is_retriable
from asyncgroup.errors import BrokerError, ErrorCode, TransportError
from asyncgroup.wire import messages as m

__all__ = ["is_transient", "request_producer_id"]

NO_TRANSACTION: Final = (1 << 31) - 1
"""The transaction timeout in ms that Java sends without a transactional id."""

TRANSIENT: Final = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})


async def request_producer_id(network: NetworkClient) -> int:
    """Return a producer id of its own; its first epoch is 0.

    Raises BrokerError (as CLUSTER_AUTHORIZATION_FAILED), UnsupportedVersionError, TransportError.
    """
    request = m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=NO_TRANSACTION)
    response = await network.request_any(m.InitProducerIdRequest, lambda _: request)
    if response.error_code:
        raise BrokerError(response.error_code, "the producer's id")
    return response.producer_id


def is_transient(error: Exception) -> bool:
    """Return whether a later request for a producer id may succeed."""
    if isinstance(error, BrokerError):
        return error.code in TRANSIENT or is_retriable(error.code)
    return isinstance(error, TransportError)
