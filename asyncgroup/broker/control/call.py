"""The requests to a node: record each, apply a fault, call its handler (Kafka's `KafkaApis`)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from asyncgroup.broker.control.injection import KafkaInjection
from asyncgroup.broker.control.recorder import Exchange, ExchangeRecorder
from asyncgroup.broker.errors import CloseConnection, KafkaStorageError
from asyncgroup.broker.handlers import HANDLERS
from asyncgroup.broker.handlers.api_versions import unsupported_version
from asyncgroup.broker.net.service import ApiHandler, RequestContext
from asyncgroup.broker.node import Node
from asyncgroup.broker.traffic.injection import Injector
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire.message import Message

__all__ = ["CallService", "NodeCall"]

log = logging.getLogger(__name__)

_REFUSED_WHOLE: Final = frozenset({"DescribeLogDirs", "ListPartitionReassignments"})
"""APIs that name topics but whose responses have no error field per topic."""


class CallService:
    """Serves the requests to `node`, as a listener's `RequestService`."""

    def __init__(self, node: Node, recorder: ExchangeRecorder, injector: Injector[KafkaInjection]) -> None:
        self.node = node
        self._recorder = recorder
        self._injector = injector

    def __repr__(self) -> str:
        return f"<CallService of node {self.node.id}>"

    def handler(self, api_key: int) -> ApiHandler | None:
        """Return the handler of an API, None if it is not served."""
        return HANDLERS.get(api_key)

    def unsupported_version(self) -> Message:
        """Return the response to an ApiVersions request of an unsupported version; it is sent in version 0."""
        return unsupported_version()

    def call(self, context: RequestContext, handler: ApiHandler, request: Any, size: int) -> NodeCall:
        """Record a request whose frame has `size` bytes, and select the fault that applies to it."""
        recorder = self._recorder
        exchange = recorder.record_request(context, request, size) if recorder.recording else None
        fault = None
        if self._injector.injections:
            if exchange is None:
                exchange = Exchange(context, request, size)
            fault = self._injector.select(context, request, exchange)
        return NodeCall(self.node, recorder, context, handler, request, exchange, fault)


class NodeCall:
    """A request being served by `node`; `fault` is the fault that applies, if any."""

    __slots__ = ("_exchange", "_node", "_recorder", "_request", "context", "fault", "handler")

    def __init__(
        self,
        node: Node,
        recorder: ExchangeRecorder,
        context: RequestContext,
        handler: ApiHandler,
        request: Any,
        exchange: Exchange | None,
        fault: KafkaInjection | None,
    ) -> None:
        self._node = node
        self._recorder = recorder
        self._request = request
        self._exchange = exchange
        self.context = context
        self.handler = handler
        self.fault = fault

    def __repr__(self) -> str:
        return f"<NodeCall {self.handler.name} v{self.context.api_version} at node {self._node.id}>"

    def handle(self) -> Any:
        """Return the response, a future or coroutine of it, or None for no response. Raise CloseConnection.

        A fault's delay or hold comes first; if the fault then cuts the connection, the handler is not called.
        """
        if self.fault is None and self._node.delay <= 0:
            return self._handle()
        return self._handle_delayed(self.fault)

    def _handle(self) -> Any:
        try:
            return self.handler.handle(self._node, self.context, self._request)
        except CloseConnection:
            raise
        except Exception as error:  # noqa: BLE001  logged there
            return self.handle_failure(error)

    def handle_failure(self, error: BaseException) -> Any:
        """Log the exception that the handler raised, now or while it was awaited, and return the error response."""
        node_id, name = self._node.id, self.handler.name
        if isinstance(error, KafkaStorageError):
            log.error("node %d: %s failed on a disk error: %s", node_id, name, error)
            return self.error_response(error.code)
        log.error("node %d: %s failed on the request %r", node_id, name, self._request, exc_info=error)
        return self.error_response(ErrorCode.UNKNOWN_SERVER_ERROR)

    async def _handle_delayed(self, fault: KafkaInjection | None) -> Any:
        if self._node.delay > 0:
            await asyncio.sleep(self._node.delay)
        if fault is None:
            return await _awaited(self._handle())
        await fault.wait_before()
        if fault.cut == "before":
            return None
        response = await _awaited(self._respond_with(fault))
        return response if response is None else fault.apply_mutations(response)

    def _respond_with(self, fault: KafkaInjection) -> Any:
        if fault.answer is not None:
            return fault.make_answer(self._request)
        if fault.error is not None:
            code, topic = fault.error
            if topic is None or self.handler.name in _REFUSED_WHOLE:
                return self.error_response(code)
            self.context.topic_errors[topic] = code
        return self._handle()

    def error_response(self, code: ErrorCode) -> Any:
        """Return a response that carries only this error. Raise CloseConnection if the API has none."""
        return self.handler.error_response(self.context, self._request, code)

    def record_response(self, response: Any, size: int, now: float) -> None:
        """Record the response in the history: `size` bytes, encoded at `now` (loop time)."""
        if self._exchange is not None:
            self._recorder.record_response(self._exchange, response, size, now)

    def release_payloads(self) -> None:
        """Drop the records of the recorded messages; called once the response is written."""
        if self._exchange is not None:
            self._recorder.release_payloads(self._exchange)


async def _awaited(response: Any) -> Any:
    return response if response is None or isinstance(response, Message) else await response
