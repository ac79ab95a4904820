"""The work of the pytest fixtures for Pulsar: run an EmbeddedPulsar with the options of a test's `pulsar` marker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager

from asyncgroup.pulsar_broker.embedded import EmbeddedPulsar
from asyncgroup.testing.kit.pulsar_options import PulsarMarkerOptions
from asyncgroup.testing.kit.running import (
    TestContext,
    VirtualTimeMembers,
    need_virtual_loop,
    running_on_loop,
    running_thread,
)
from asyncgroup.testing.pulsar_server import PulsarServer

__all__ = ["VirtualPulsar", "running_pulsar", "running_pulsar_server", "running_virtual_pulsar"]


class VirtualPulsar(VirtualTimeMembers, EmbeddedPulsar):
    """An `EmbeddedPulsar` in virtual time and in an in-memory network."""


def running_pulsar(context: TestContext) -> AbstractAsyncContextManager[EmbeddedPulsar]:
    """Run the Pulsar of an async test on the running event loop."""
    options = PulsarMarkerOptions.parse(context.options())
    return running_on_loop(context, options, EmbeddedPulsar(options.pulsar), _subscriptions)


def running_virtual_pulsar(context: TestContext) -> AbstractAsyncContextManager[VirtualPulsar]:
    """Run the Pulsar of an async test on a virtual-time loop."""
    need_virtual_loop("virtual_pulsar")
    options = PulsarMarkerOptions.parse(context.options())
    return running_on_loop(context, options, VirtualPulsar(options.pulsar), _subscriptions)


def running_pulsar_server(context: TestContext) -> AbstractContextManager[PulsarServer]:
    """Run the Pulsar of a blocking test in a separate thread."""
    options = PulsarMarkerOptions.parse(context.options())
    return running_thread(context, options, PulsarServer(options.pulsar), _subscriptions)


def _subscriptions(pulsar: EmbeddedPulsar) -> Iterator[str]:
    """Describe the subscriptions of all topics, a line each."""
    for topic in pulsar.topics:
        for name in pulsar.topic(topic).subscriptions:
            found = pulsar.subscription(topic, name)
            yield (
                f"subscription {name} of {topic}: {found.type}, backlog {found.backlog}, "
                f"{found.unacked} unacknowledged at {len(found.consumers)} consumers with {found.permits} permits"
            )
