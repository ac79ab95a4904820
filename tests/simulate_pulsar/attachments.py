"""What clients and brokers know of each other's consumers at the end of a run: permits, and who holds an Exclusive subscription."""

from __future__ import annotations

from typing import Any

from asyncgroup.pulsar.consumer.config import SubscriptionType
from asyncgroup.pulsar.consumer.receiving.permits import PermitLedger
from asyncgroup.pulsar.errors import PulsarServerError
from asyncgroup.pulsar.wire.server_errors import ServerError
from asyncgroup.pulsar_broker.subscriptions.subscribed_consumer import SubscribedConsumer
from tests.simulate_pulsar.plan import SubscriptionSpec
from tests.simulate_pulsar.world import PulsarWorld

__all__ = ["hand_over", "unbalanced"]


def unbalanced(world: PulsarWorld) -> str | None:
    """Return where the permits of a client and its broker differ, or are not granted; None if nowhere."""
    at_brokers: dict[tuple[str, int, int], SubscribedConsumer] = {}
    for node in world.runtime.nodes.values():
        for connection in node.connections:
            host, port = connection.protocol.transport.get_extra_info("peername")[:2]
            for number, place in connection.consumers.items():
                at_brokers[host, port, number] = place.consumer
    for program in world.programs:
        for number, consumer in program.consumers().items():
            connection = consumer._connection
            if connection is None:
                if _waits_for_holder(world, consumer):
                    continue
                return f"{program.name}: {consumer!r} is not attached"
            host, port = connection.protocol.transport.get_extra_info("sockname")[:2]
            other = at_brokers.pop((host, port, number), None)
            if other is None:
                return f"{program.name}: {consumer!r} is not known by its broker"
            if text := _difference(consumer.permits, other):
                return f"{program.name}: {text}"
    if at_brokers:
        return f"brokers have consumers of nobody: {list(at_brokers.values())}"
    return None


def _difference(ledger: PermitLedger, other: SubscribedConsumer) -> str | None:
    if ledger.open != other.permits:
        return f"{ledger!r}, and its broker has {other!r}"
    due = ledger.target - ledger.queued - ledger.open
    if due > 0 and due * 2 >= ledger.target:
        return f"{ledger!r} owes {due} permits"
    if other.unacked or other.pending:
        return f"its broker has {other!r}, {other.unacked} unacknowledged"
    return None


# --- Exclusive subscriptions ------------------------------------------------------------------------------------------


def _waits_for_holder(world: PulsarWorld, consumer: Any) -> bool:
    """Return whether a consumer has lost an Exclusive subscription to another program, which has connected first.

    Its broker refuses it with ConsumerBusy as long as it has the other one (`AbstractDispatcherSingleActiveConsumer.addConsumer`), and
    a consumer that was registered once goes on to ask (`ConsumerImpl.connectionOpened`).
    """
    error = consumer.history.error
    return (
        consumer.kind is SubscriptionType.EXCLUSIVE
        and consumer.history.was_attached
        and isinstance(error, PulsarServerError)
        and error.code == ServerError.CONSUMER_BUSY
        and any(
            part.name == consumer.topic and part.subscriptions[consumer.subscription].consumers
            for part in world.parts(str(consumer.topic.whole))
        )
    )


async def hand_over(world: PulsarWorld, spec: SubscriptionSpec, timeout: float) -> None:
    """Let the holder of an Exclusive subscription leave as long as others wait for it: one of them must get it."""
    while True:
        programs = [
            each
            for each in world.consumers.values()
            if each.is_active and each.spec.subscription == spec.name
        ]
        holders = [each for each in programs if any(one.is_attached for one in each.consumers().values())]
        if len(programs) < 2 or not holders:
            return
        world.story.write("plan", f"leave({holders[0].name})")
        holders[0].leave()
        await world.within(timeout, "permits balance", lambda: _unheld(world, spec) or unbalanced(world))


def _unheld(world: PulsarWorld, spec: SubscriptionSpec) -> str | None:
    for part in world.parts(spec.topic):
        if not part.subscriptions[spec.name].consumers:
            return f"{part.name}: no consumer holds {spec.name}"
    return None
