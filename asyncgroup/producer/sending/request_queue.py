"""Requests to be sent: at once over an open connection, otherwise in order as soon as there is one.

Idempotent producers number their batches, so no request may overtake an earlier one to the same node, and neither may its
response: all of them are passed on in the same way, in the turn of the event loop that received them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from asyncgroup.cluster.network_client import NetworkClient
from asyncgroup.errors import TransportError
from asyncgroup.producer.batches.batch import ProducerBatch
from asyncgroup.producer.sending.requests import EncodedBatch
from asyncgroup.wire import messages as m

__all__ = ["PRODUCE_LANE", "PendingRequest", "RequestOutcome", "RequestQueue"]

PRODUCE_LANE: Final = "produce"
"""The purpose of the connections that carry Produce requests."""


class PendingRequest(NamedTuple):
    """A Produce request that has no response yet."""

    node: int
    batches: list[EncodedBatch]
    ids: dict[str, UUID]
    """The ids of its topics."""
    highest: int | None
    """The highest version that it may have; None if there is no limit."""
    transactional_id: str | None = None
    adds_partitions: bool = False
    """Whether it adds its partitions to the transaction (KIP-890)."""


class RequestOutcome(Protocol):
    """What happened to a request; one of the methods is called for each."""

    def on_response(
        self, request: PendingRequest, response: m.ProduceResponse | None, error: Exception | None
    ) -> None:
        """The response was received, or the request has failed with `error`. Called by a connection: it must not raise."""

    def on_oneway_sent(self, request: PendingRequest) -> None:
        """It was sent, and there will be no response (acks=0)."""

    def on_failure(self, request: PendingRequest, error: Exception) -> None:
        """It was not sent; with acks=0 it may have been sent."""


class RequestQueue:
    """Sends Produce requests. `build(request, version)` makes the message, `spawn` runs coroutine functions."""

    def __init__(
        self,
        network: NetworkClient,
        outcome: RequestOutcome,
        build: Callable[[PendingRequest, int], m.ProduceRequest],
        spawn: Callable[..., None],
        *,
        is_oneway: bool,
    ) -> None:
        self._network = network
        self._outcome = outcome
        self._build = build
        self._spawn = spawn
        self._is_oneway = is_oneway
        self._unsent: dict[int, deque[PendingRequest]] = {}
        """The requests to send, by node; a task sends those of a node."""

    def __repr__(self) -> str:
        return f"<RequestQueue {sum(map(len, self._unsent.values()))} requests to send>"

    def send(self, request: PendingRequest) -> None:
        """Send a request: now if possible, otherwise by a task that waits for the connection."""
        node = request.node
        if node in self._unsent:
            self._unsent[node].append(request)
            return
        try:
            is_sent = self._try_submit(request)
        except Exception as error:  # noqa: BLE001  a bug must not leave the records waiting
            self._outcome.on_failure(request, error)
            return
        if not is_sent:
            self._unsent[node] = deque([request])
            self._spawn(self._submit_unsent, node, name=f"produce to node {node}")

    def is_unsent(self, batch: ProducerBatch) -> bool:
        """Return whether the request with a batch in flight was not written yet: it is certainly not in the log."""
        if self._is_oneway:
            return False  # it is removed when the transport's buffer has room again
        return any(
            encoded.batch is batch
            for each in self._unsent.values()
            for request in each
            for encoded in request.batches
        )

    def _try_submit(self, request: PendingRequest) -> bool:
        """Send a request now; False if that is not possible."""
        return not self._is_oneway and self._network.try_submit(
            request.node,
            m.ProduceRequest,
            partial(self._build, request),
            partial(self._outcome.on_response, request),
            lane=PRODUCE_LANE,
            highest=request.highest,
        )

    async def _submit_unsent(self, node: int) -> None:
        """Send the requests to a node, in order, as soon as that is possible."""
        unsent = self._unsent[node]
        try:
            while unsent:
                error = await self._submit(unsent[0])
                unsent.popleft()
                while unsent and isinstance(error, TransportError):
                    # they have waited for the same connection
                    self._outcome.on_failure(unsent.popleft(), error)
        finally:
            del self._unsent[node]

    async def _submit(self, request: PendingRequest) -> Exception | None:
        """Send a request; return the error if that failed."""
        network, build, highest = self._network, partial(self._build, request), request.highest
        try:
            if self._is_oneway:
                await network.send_oneway(
                    request.node, m.ProduceRequest, build, lane=PRODUCE_LANE, highest=highest
                )
            else:
                on_response = partial(self._outcome.on_response, request)
                await network.submit(
                    request.node, m.ProduceRequest, build, on_response, lane=PRODUCE_LANE, highest=highest
                )
        except Exception as error:  # noqa: BLE001  a bug must not leave the records waiting
            self._outcome.on_failure(request, error)
            return error
        if self._is_oneway:
            self._outcome.on_oneway_sent(request)
        return None
