"""Producer ids: InitProducerId without a transactional id (KIP-98, KIP-360)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.network_client import NetworkClient
from asyncgroup.error_codes import is_retriable
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode, ProtocolError, TransportError
from asyncgroup.producer.batches.accumulator import RecordAccumulator
from asyncgroup.wire import messages as m

__all__ = ["ProducerIds", "is_transient", "request_producer_id"]

_log = logging.getLogger("asyncgroup.producer")

NO_TRANSACTION: Final = (1 << 31) - 1
"""The transaction timeout in ms that Java sends without a transactional id."""

TRANSIENT: Final = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})


async def request_producer_id(network: NetworkClient) -> int:
    """Return a new producer id; its first epoch is 0.

    Raises BrokerError (as CLUSTER_AUTHORIZATION_FAILED), UnsupportedVersionError, ProtocolError without an id, TransportError.
    """
    request = m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=NO_TRANSACTION)
    response = await network.request_any(m.InitProducerIdRequest, lambda _: request)
    if response.error_code:
        raise BrokerError(response.error_code, "the producer's id")
    if response.producer_id < 0:
        raise ProtocolError(f"the response to InitProducerId has the producer id {response.producer_id}")
    return response.producer_id


def is_transient(error: Exception) -> bool:
    """Return whether a later request for a producer id may succeed."""
    if isinstance(error, BrokerError):
        return error.code in TRANSIENT or is_retriable(error.code)
    return isinstance(error, TransportError)


class ProducerIds:
    """Obtains producer ids for the partitions that need one.

    `on_refused(error)` is called if the broker refuses one with an error that is not retriable, `on_change()` after each attempt.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        accumulator: RecordAccumulator,
        on_refused: Callable[[Exception], None],
        on_change: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._accumulator = accumulator
        self._on_refused = on_refused
        self._on_change = on_change
        self._wanted = asyncio.Event()
        self.error: Exception | None = None
        """Why the last attempt failed."""

    def __repr__(self) -> str:
        return f"<ProducerIds {'wanted' if self._wanted.is_set() else 'idle'}, error {self.error!r}>"

    def want(self) -> None:
        """A partition needs a producer id."""
        self._wanted.set()

    async def run(self) -> None:
        """Obtain an id whenever one is wanted."""
        retry = self._cluster.retry()
        while True:
            await self._wanted.wait()
            try:
                self._accumulator.set_producer_id(await request_producer_id(self._cluster.network))
            except AsyncGroupError as error:
                self.error = error
                if not is_transient(error):
                    self._on_refused(error)
                _log.info("no producer id: %s", error)
                self._wanted.clear()
                await retry.wait()
            else:
                self.error = None
                self._wanted.clear()
                retry.reset()
            self._on_change()
