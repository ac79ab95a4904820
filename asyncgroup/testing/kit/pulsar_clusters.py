"""The work of the pytest fixtures for Pulsar, independent of pytest: run an EmbeddedPulsar with the options of a test's marker.

Each context manager does what those of `clusters` do for Kafka.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from asyncgroup.errors import ClosedError
from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar
from asyncgroup.testing.kit.clusters import REPORT_LINES, TestContext, need_virtual_loop
from asyncgroup.testing.kit.pulsar_options import PulsarMarkerOptions
from asyncgroup.testing.pulsar_server import PulsarServer
from asyncgroup.testing.virtual.loop import current_network
from asyncgroup.testing.virtual.network import Network

__all__ = ["VirtualPulsar", "running_pulsar", "running_pulsar_server", "running_virtual_pulsar"]


class VirtualPulsar(EmbeddedPulsar):
    """An `EmbeddedPulsar` in virtual time and in an in-memory network."""

    @property
    def network(self) -> Network:
        """The network between clients and brokers, for latency, cuts and black holes."""
        return current_network()

    async def advance(self, seconds: float) -> None:
        """Let `seconds` of virtual time pass; timers that are due in them run."""
        await asyncio.sleep(seconds)


@asynccontextmanager
async def running_pulsar(context: TestContext) -> AsyncIterator[EmbeddedPulsar]:
    """Run the Pulsar of an async test on the running event loop."""
    options = PulsarMarkerOptions.parse(context.options())
    async with EmbeddedPulsar(options.pulsar) as pulsar:
        _begin(context, options, pulsar)
        yield pulsar
        _end(context, pulsar)


@asynccontextmanager
async def running_virtual_pulsar(context: TestContext) -> AsyncIterator[VirtualPulsar]:
    """Run the Pulsar of an async test on a virtual-time loop."""
    need_virtual_loop("virtual_pulsar")
    options = PulsarMarkerOptions.parse(context.options())
    async with VirtualPulsar(options.pulsar) as pulsar:
        _begin(context, options, pulsar)
        yield pulsar
        _end(context, pulsar)


def _begin(context: TestContext, options: PulsarMarkerOptions, pulsar: EmbeddedPulsar) -> None:
    context.set_report(lambda: _describe(pulsar))
    if not options.unknown_topics:
        pulsar.on_unknown_topic(context.on_unknown_topic)
    options.apply_faults(pulsar)


def _end(context: TestContext, pulsar: EmbeddedPulsar) -> None:
    if context.failed():
        pulsar.faults.clear()


@contextmanager
def running_pulsar_server(context: TestContext) -> Iterator[PulsarServer]:
    """Run the Pulsar of a blocking test in a separate thread."""
    options = PulsarMarkerOptions.parse(context.options())
    with PulsarServer(options.pulsar) as server:
        context.set_report(lambda: _describe_server(server))
        if not options.unknown_topics:
            server.call(lambda pulsar: pulsar.on_unknown_topic(context.on_unknown_topic))
        server.call(options.apply_faults)
        yield server
        last = _describe_server(server)  # unused faults are reported after the server has stopped
        context.set_report(lambda: last)
        if context.failed():
            server.ignore_unused_faults()


def _describe_server(server: PulsarServer) -> str:
    try:
        return server.call(_describe, timeout=5.0)
    except ClosedError:
        return repr(server)


def _describe(pulsar: EmbeddedPulsar) -> str:
    """Describe the brokers, their subscriptions, unused faults and last requests."""
    lines = [repr(pulsar)]
    for topic in pulsar.topics:
        for name in pulsar.topic(topic).subscriptions:
            found = pulsar.subscription(topic, name)
            lines.append(
                f"subscription {name} of {topic}: {found.type}, backlog {found.backlog}, "
                f"{found.unacked} unacknowledged at {len(found.consumers)} consumers with {found.permits} permits"
            )
    lines += [repr(fault) for fault in pulsar.faults.unused]
    lines.append(f"{len(pulsar.history)} requests; the last of them, repeated ones folded:")
    return "\n".join([*lines, pulsar.history.story(REPORT_LINES, fold=True)])
