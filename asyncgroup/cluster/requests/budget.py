"""The time that one call may take: a deadline for all of its requests, and less for a node that does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from copy import copy
from typing import Final, TypeVar

from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.requests.time_limit import within
from asyncgroup.net.backoff import RetryLoop

__all__ = ["NODE_TIMEOUT", "RequestBudget"]

T = TypeVar("T")

NODE_TIMEOUT: Final = 5.0
"""Seconds for a node of many that are asked at the same time: one that has not answered by then has an error."""


class RequestBudget:
    """The limits of one call, which begins when this object is made.

    All requests of the call share one deadline, `timeout` seconds from now (`default.api.timeout.ms` in Java): it ends the repetitions, and
    the attempt that is under way. With the timeout 0 there is no deadline, and each request is sent once.
    """

    __slots__ = ("_cluster", "_is_repeated", "deadline")

    def __init__(self, cluster: ClusterClient, timeout: float) -> None:
        self._cluster = cluster
        self._is_repeated = timeout > 0
        self.deadline = asyncio.get_running_loop().time() + timeout if timeout > 0 else float("inf")
        """Loop time at which the call ends."""

    def __repr__(self) -> str:
        return f"<RequestBudget until {self.deadline:.3f}>"

    def retry(self) -> RetryLoop:
        """Return the limits of one of the requests: it may take what is left of the call's time."""
        retry = self._cluster.retry(retries=float("inf") if self._is_repeated else 0, cuts_attempts=True)
        retry.deadline = self.deadline
        return retry

    def node_retry(self) -> RetryLoop:
        """Return the limits of a request to several nodes or leaders: one that does not answer delays the others by `NODE_TIMEOUT`."""
        return self.for_node().retry()

    def for_node(self) -> RequestBudget:
        """Return the limits of several requests to one of many nodes: `NODE_TIMEOUT` from now on, for all of them."""
        part = copy(self)
        part.deadline = min(self.deadline, asyncio.get_running_loop().time() + NODE_TIMEOUT)
        return part

    async def limit(self, work: Awaitable[T], what: str = "Metadata") -> T:
        """Await a step of the call that is not repeated. Raises RequestTimedOut at the deadline, which names the step by `what`."""
        return await within(self.deadline, work, what=what)
