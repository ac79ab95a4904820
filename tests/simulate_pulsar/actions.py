"""The effect of each kind of action; `plan` decides its object and time."""

from __future__ import annotations

from typing import Final

from asyncgroup.testing.virtual.conditions import NetworkFault, patterns_of
from tests.simulate_pulsar.consumer import SimConsumer
from tests.simulate_pulsar.world import PORT, PulsarWorld, host_of
from tests.simulation.action import Acts
from tests.simulation.conditions import NetworkDisturbance

__all__ = ["perform"]

_ACTS: Final = Acts()
_act, perform = _ACTS.act, _ACTS.perform

ERRORS: Final = {
    "LookupTopic": "ServiceNotReady",
    "PartitionedTopicMetadata": "MetadataError",
    "Producer": "ServiceNotReady",
    "Subscribe": "ServiceNotReady",
    "Ack": "MetadataError",
    "Seek": "MetadataError",
}
"""An error that each command may be answered with, and that passes.

Not one of a single SEND: a real broker refuses all that follow as well, until the producer has registered again."""


# --- programs ---------------------------------------------------------------------------------------------------------


@_act
def _join(world: PulsarWorld, name: str) -> None:
    world.join(world.plan.consumers[name])


@_act
def _leave(world: PulsarWorld, name: str) -> None:
    if program := world.program(name):
        program.leave()


@_act
def _restart(world: PulsarWorld, name: str) -> None:
    if program := world.program(name):
        program.restart()


@_act
def _crash(world: PulsarWorld, name: str) -> None:
    """Kill the process: its host closes its connections."""
    if program := world.program(name):
        world.network.kill(program.host, name)
        world.network.cut(program.host)
        program.die()
        world.deaths.append(world.loop.time())


@_act
def _lose_host(world: PulsarWorld, name: str) -> None:
    """Kill the host: its connections stay half-open."""
    if program := world.program(name):
        world.network.half_open(program.host)
        world.network.kill(program.host, name)
        program.die()
        world.deaths.append(world.loop.time())


@_act
def _block_handler(world: PulsarWorld, name: str, seconds: float) -> None:
    if program := world.program(name):
        program.gate.clear()
        world.later(seconds, program.gate.set)


@_act
def _pause(world: PulsarWorld, name: str, seconds: float) -> None:
    program = world.program(name)
    if isinstance(program, SimConsumer):
        program.pause(True)
        world.later(seconds, lambda: program.pause(False))


@_act
def _redeliver_all(world: PulsarWorld, name: str) -> None:
    program = world.program(name)
    if isinstance(program, SimConsumer):
        program.redeliver_all()


@_act
def _seek(world: PulsarWorld, name: str, target: str) -> None:
    program = world.program(name)
    if isinstance(program, SimConsumer):
        program.seek(target)


@_act
def _produce(world: PulsarWorld, name: str, count: int) -> None:
    world.producers[name].produce(count)


@_act
def _restart_producer(world: PulsarWorld, name: str) -> None:
    world.producers[name].restart()


# --- network ----------------------------------------------------------------------------------------------------------


def _disturb(
    world: PulsarWorld,
    host: str,
    what: str,
    seconds: float,
    fault: NetworkFault | None = None,
    latency: float = 0.0,
) -> None:
    """Disturb the connections of a client's host, or of a broker."""
    place = (host, PORT)
    disturbance = NetworkDisturbance(
        f"{host} {what}",
        lambda one, other: place in patterns_of(one, other) or host in (one[0], other[0]),
        fault,
        latency,
    )
    world.disturb(disturbance, seconds)


@_act
def _block_client(world: PulsarWorld, name: str, seconds: float) -> None:
    """Hold back all traffic of a client; it arrives later."""
    if program := world.program(name):
        _disturb(world, program.host, "is blocked", seconds, NetworkFault.HANG)


@_act
def _reset_client(world: PulsarWorld, name: str) -> None:
    if program := world.program(name):
        world.network.cut(program.host)


@_act
def _close_client(world: PulsarWorld, name: str) -> None:
    """Let the brokers close a client's connections in order."""
    if program := world.program(name):
        world.network.close_connections(program.host)


@_act
def _half_open_client(world: PulsarWorld, name: str) -> None:
    if program := world.program(name):
        world.network.half_open(program.host)


@_act
def _slow_client(world: PulsarWorld, name: str, latency: float, seconds: float) -> None:
    if program := world.program(name):
        _disturb(world, program.host, "is slow", seconds, latency=latency)


@_act
def _freeze_broker(world: PulsarWorld, number: int, seconds: float) -> None:
    """Freeze a broker as SIGSTOP does: connections are accepted, but nothing is answered."""
    _disturb(world, host_of(number), "is frozen", seconds, NetworkFault.SILENT)


@_act
def _refuse_broker(world: PulsarWorld, number: int, seconds: float) -> None:
    _disturb(world, host_of(number), "refuses", seconds, NetworkFault.REFUSE)


@_act
def _reset_broker(world: PulsarWorld, number: int) -> None:
    world.network.cut(host_of(number), PORT)


@_act
def _slow_broker(world: PulsarWorld, number: int, latency: float, seconds: float) -> None:
    _disturb(world, host_of(number), "is slow", seconds, latency=latency)


# --- brokers ----------------------------------------------------------------------------------------------------------


@_act
def _stop_broker(world: PulsarWorld, number: int, seconds: float) -> None:
    world.stop_broker(number, seconds)


@_act
def _unload(world: PulsarWorld, topic: str, to: int | None) -> None:
    world.pulsar.unload(topic, to)


@_act
def _close_consumers(world: PulsarWorld, name: str) -> None:
    for part in world.parts(world.plan.setting.subscriptions[name].topic):
        if (found := part.subscriptions.get(name)) is not None:
            world.runtime.close_consumers(found)


@_act
def _add_partitions(world: PulsarWorld, topic: str, partitions: int) -> None:
    known = world.parts(topic)
    if partitions > len(known):
        world.runtime.namespaces.add_partitions(known[0].name.whole, partitions)


@_act
def _jump(world: PulsarWorld, seconds: float) -> None:
    """Set the time of day forward or back, for clients and brokers."""
    world.loop._wall_clock_at_zero += round(seconds * 1000)  # type: ignore[attr-defined]


@_act
def _fault(world: PulsarWorld, api: str, what: str, times: int) -> None:
    """Disturb the next requests with a command."""
    fault = world.pulsar.faults.on(api, times=times).optional()
    if what == "drop":
        fault.drop()
    elif what == "delay":
        fault.delay(2.5)
    elif what == "error":
        if api in ERRORS:
            fault.error(ERRORS[api])
    else:
        fault.disconnect(what)  # type: ignore[arg-type]
