"""Run an embedded broker, of any protocol, for the time of a test with a pytest fixture. Independent of pytest.

Each context manager starts a cluster, creates its topics and faults, registers a report of the cluster for failed tests,
and at the end checks for unused faults, unless the test has failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Protocol, TypeVar

from asyncgroup.errors import ClosedError, UsageError
from asyncgroup.testing.kit.kit_options import KitOptions
from asyncgroup.testing.threaded_server import ThreadedServer
from asyncgroup.testing.virtual.loop import current_network
from asyncgroup.testing.virtual.network import Network

__all__ = ["TestContext", "VirtualTimeMembers", "need_virtual_loop", "running_on_loop", "running_thread"]

REPORT_LINES: Final = 60
"""The number of exchanges in the report of a failed test."""


class TestContext(Protocol):
    """The test, or test session, that uses a fixture."""

    def options(self) -> Mapping[str, Any]:
        """Return the keyword arguments of its marker."""

    def failed(self) -> bool:
        """Return whether the test has failed; unused faults are not reported then."""

    def set_report(self, report: Callable[[], str]) -> None:
        """Set the function that describes the cluster if the test fails."""

    def on_unknown_topic(self, topic: str) -> None:
        """Fail the test: a client requested a topic that never existed. Called on the cluster's event loop."""


class VirtualTimeMembers:
    """What an embedded broker in virtual time and in an in-memory network has in addition."""

    @property
    def network(self) -> Network:
        """The network between clients and brokers, for latency, cuts and black holes."""
        return current_network()

    async def advance(self, seconds: float) -> None:
        """Let `seconds` of virtual time pass; timers that are due in them run."""
        await asyncio.sleep(seconds)


ClusterT = TypeVar("ClusterT", bound=Any)
ServerT = TypeVar("ServerT", bound=ThreadedServer[Any])


@asynccontextmanager
async def running_on_loop(
    context: TestContext,
    options: KitOptions,
    cluster: ClusterT,
    describe: Callable[[ClusterT], Iterable[str]],
) -> AsyncIterator[ClusterT]:
    """Run the cluster of an async test on the running event loop. `describe` returns lines of its report."""
    async with cluster:
        context.set_report(lambda: _report(cluster, describe))
        _begin(context, options, cluster)
        yield cluster
        if context.failed():
            cluster.faults.clear()


@contextmanager
def running_thread(
    context: TestContext, options: KitOptions, server: ServerT, describe: Callable[[Any], Iterable[str]]
) -> Iterator[ServerT]:
    """Run the cluster of a blocking test in a separate thread."""

    def report() -> str:
        try:
            return server.call(lambda cluster: _report(cluster, describe), timeout=5.0)
        except ClosedError:
            return repr(server)

    with server:
        context.set_report(report)
        server.call(lambda cluster: _begin(context, options, cluster))
        yield server
        last = report()  # unused faults are reported after the server has stopped
        context.set_report(lambda: last)
        if context.failed():
            server.ignore_unused_faults()


def _begin(context: TestContext, options: KitOptions, cluster: Any) -> None:
    if not options.unknown_topics:
        cluster.on_unknown_topic(context.on_unknown_topic)
    options.apply_faults(cluster)


def _report(cluster: Any, describe: Callable[[Any], Iterable[str]]) -> str:
    """Describe the cluster, unused faults and last requests."""
    lines = [repr(cluster), *describe(cluster), *map(repr, cluster.faults.unused)]
    lines.append(f"{len(cluster.history)} requests; the last of them, repeated ones folded:")
    return "\n".join([*lines, cluster.history.story(REPORT_LINES, fold=True)])


def need_virtual_loop(fixture: str) -> None:
    """Raise UsageError if the test of a fixture has no event loop in virtual time."""
    try:
        current_network()
    except UsageError as error:
        raise UsageError(
            f"{fixture} needs a test on a VirtualTimeLoop. With pytest-asyncio 1.4 or newer, an async test that uses "
            "the fixture runs on one; with anyio, the test's `anyio_backend` has to be "
            '("asyncio", {"loop_factory": asyncgroup.testing.VirtualTimeLoop})'
        ) from error
