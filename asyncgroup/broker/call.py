"""A request on its way through a node: recorded, perhaps hit by a fault, handled or refused (Kafka's `KafkaApis`)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from asyncgroup.broker.context import RequestContext
from asyncgroup.broker.errors import CloseConnection, StorageError
from asyncgroup.broker.faults import Fault
from asyncgroup.broker.handlers import ApiHandler
from asyncgroup.broker.history import Exchange
from asyncgroup.broker.node import Node
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire.message import Message

__all__ = ["Call"]

log = logging.getLogger(__name__)

_REFUSED_WHOLE: Final = frozenset({"DescribeLogDirs", "ListPartitionReassignments"})
"""APIs that name topics and whose answers have no place for the error of one."""


class Call:
    """A request under way at `node`; `size` is that of its frame in bytes. `fault` is what hits it, if anything."""

    __slots__ = ("_exchange", "_node", "_request", "context", "fault", "handler")

    def __init__(
        self, node: Node, context: RequestContext, handler: ApiHandler, request: Any, size: int
    ) -> None:
        self._node, self._request = node, request
        self.context, self.handler = context, handler
        history = node.history
        self._exchange = history.open(context, request, size) if history.recording else None
        self.fault: Fault | None = None
        if node.faults:
            if self._exchange is None:
                self._exchange = Exchange(context, request, size)
            self.fault = node.faults.take(context, request, self._exchange)

    def __repr__(self) -> str:
        return f"<Call {self.handler.name} v{self.context.api_version} at node {self._node.id}>"

    def handle(self) -> Any:
        """The response, something to await for it, or None for no response; raises CloseConnection.

        A fault that acts before the request is waited for first; one that cuts the connection then handles nothing.
        """
        if self.fault is None and self._node.delay <= 0:
            return self._handle()
        return self._handle_late(self.fault)

    def _handle(self) -> Any:
        try:
            return self.handler.handle(self._node, self.context, self._request)
        except CloseConnection:
            raise
        except Exception as error:  # noqa: BLE001  logged there
            return self.failed(error)

    def failed(self, error: BaseException) -> Any:
        """Log what the handler raised, at once or later, and return the response that says so."""
        node_id, name = self._node.id, self.handler.name
        if isinstance(error, StorageError):
            log.error("node %d: the storage failed in %s: %s", node_id, name, error)
            return self.error_response(error.code)
        log.error("node %d: %s failed on %r", node_id, name, self._request, exc_info=error)
        return self.error_response(ErrorCode.UNKNOWN_SERVER_ERROR)

    async def _handle_late(self, fault: Fault | None) -> Any:
        if self._node.delay > 0:
            await asyncio.sleep(self._node.delay)
        if fault is None:
            return await _settled(self._handle())
        await fault.before()
        if fault.cut == "before":
            return None
        response = await _settled(self._respond_with(fault))
        return response if response is None else fault.changed(response)

    def _respond_with(self, fault: Fault) -> Any:
        if fault.answers:
            return fault.made_answer(self._request)
        if fault.code is not None and (fault.topic is None or self.handler.name in _REFUSED_WHOLE):
            return self.error_response(fault.code)
        if fault.code is not None and fault.topic is not None:
            self.context.topic_errors[fault.topic] = fault.code
        return self._handle()

    def error_response(self, code: ErrorCode) -> Any:
        """The response that says nothing but this error; raises CloseConnection where there is none."""
        return self.handler.error_response(self.context, self._request, code)

    def answered(self, response: Any, size: int, now: float) -> None:
        """Record the response, `size` bytes long, encoded at `now` (the loop's time)."""
        if self._exchange is not None:
            self._node.history.close(self._exchange, response, size, now)

    def finish(self) -> None:
        """Let go of the records that it carried: whatever had to be written is written."""
        if self._exchange is not None:
            self._node.history.drop_payloads(self._exchange)


async def _settled(response: Any) -> Any:
    return response if response is None or isinstance(response, Message) else await response
