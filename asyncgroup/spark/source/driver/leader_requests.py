"""`LeaderRequests`: ListOffsets requests of the driver, one per leader, of which a silent one does not delay the others.

A broker that accepts connections and does not answer would cost each lookup the whole request timeout. So a lookup may
limit how long it waits; the request goes on, and a later lookup uses its response. While a broker is silent, lookups do not
wait for it at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from asyncgroup.cluster import ClusterClient
from asyncgroup.cluster.requests.list_offsets import Isolation
from asyncgroup.consumer.list_offsets import ListOffsetsResult, list_offsets_once
from asyncgroup.errors import AsyncGroupError, BrokerError, ErrorCode, RequestTimedOut, TransportError
from asyncgroup.lifecycle import cancel_and_wait, start_task
from asyncgroup.model import TopicPartition

__all__ = ["LeaderRequests"]

Wanted: TypeAlias = Mapping[TopicPartition, int]
"""Partitions, each with `EARLIEST`, `LATEST` or a timestamp in ms."""


class _Key(NamedTuple):
    """Of requests with one key there is at most one in flight."""

    node_id: int
    specs: frozenset[int]
    """Which offsets it asks for: a request for starts does not wait for the response to one for ends."""
    or_end: bool


class _Request(NamedTuple):
    wanted: Wanted
    sent_at: float
    """By the loop's time."""
    task: asyncio.Task[ListOffsetsResult]


class LeaderRequests:
    """The ListOffsets requests of one query. Close with `aclose`."""

    def __init__(self, cluster: ClusterClient, isolation: Isolation) -> None:
        self._cluster = cluster
        self._isolation = isolation
        self._requests: dict[_Key, _Request] = {}
        """Requests whose result no lookup has used yet."""
        self._silent: set[int] = set()
        """Nodes that did not answer in the time of a lookup, and have not answered since."""

    def __repr__(self) -> str:
        return f"<LeaderRequests: {len(self._requests)} in flight, silent nodes {sorted(self._silent)}>"

    async def ask(
        self, wanted: Wanted, *, or_end: bool = True, limit: float | None = None
    ) -> ListOffsetsResult:
        """Send a request to each known leader; return each partition's offset or error, as `list_offsets_once`.

        After `limit` seconds, leaders that have not answered count as silent; None waits for each until its request fails.
        The result of a silent leader may be that of an earlier lookup's request: an end from that time.
        """
        found = ListOffsetsResult({}, {})
        parts: dict[int, dict[TopicPartition, int]] = {}
        for tp, spec in wanted.items():
            parts.setdefault(self._cluster.view.leader(tp), {})[tp] = spec
        for tp in parts.pop(-1, ()):
            found.problems[tp] = BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"offset of {tp}")
        keys = {node: _Key(node, frozenset(part.values()), or_end) for node, part in parts.items()}
        self._drop_unused(keys)
        for node_id, part in parts.items():
            self._send(keys[node_id], part)
        awaited = [
            self._requests[key].task
            for node_id, key in keys.items()
            if limit is None or node_id not in self._silent
        ]
        if awaited:
            await asyncio.wait(awaited, timeout=limit)
        for node_id, part in parts.items():
            self._collect(keys[node_id], part, found)
        return found

    async def aclose(self) -> None:
        """Cancel the requests in flight."""
        requests, self._requests = self._requests, {}
        await cancel_and_wait(*(request.task for request in requests.values()))

    def _drop_unused(self, keys: Mapping[int, _Key]) -> None:
        """Drop results that this lookup does not use: they are too old for later ones."""
        used = set(keys.values())
        for key in [key for key, one in self._requests.items() if one.task.done() and key not in used]:
            del self._requests[key]

    def _send(self, key: _Key, part: Wanted) -> None:
        if key in self._requests:
            return
        work = list_offsets_once(self._cluster, part, self._isolation, or_end=key.or_end)
        now = asyncio.get_running_loop().time()
        self._requests[key] = _Request(part, now, start_task(work, name=f"offsets from node {key.node_id}"))

    def _collect(self, key: _Key, part: Wanted, found: ListOffsetsResult) -> None:
        """Add the results of the partitions `part` to `found`."""
        request = self._requests[key]
        if not request.task.done():
            self._silent.add(key.node_id)
            seconds = asyncio.get_running_loop().time() - request.sent_at
            error = RequestTimedOut(f"node {key.node_id} has not answered ListOffsets for {seconds:.1f} s")
            found.problems.update(dict.fromkeys(part, error))
            return
        del self._requests[key]
        answer = request.task.result()
        if answer.listed or any(not isinstance(e, TransportError) for e in answer.problems.values()):
            self._silent.discard(key.node_id)
        for tp, spec in part.items():
            if request.wanted.get(tp) != spec:
                found.problems[tp] = _not_asked(key.node_id)  # by the request of an earlier lookup
            elif tp in answer.listed:
                found.listed[tp] = answer.listed[tp]
            else:
                found.problems[tp] = answer.problems[tp]


def _not_asked(node_id: int) -> AsyncGroupError:
    return RequestTimedOut(f"node {node_id} has just answered an earlier request")
