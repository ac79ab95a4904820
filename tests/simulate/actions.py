"""The effect of each kind of action on a simulation; `plan` decides its object and time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from asyncgroup.broker import Fault as BrokerFault
from asyncgroup.error_codes import ErrorCode
from asyncgroup.testing.virtual.conditions import NetworkFault, patterns_of
from tests.broker.internals import controller_of, offsets_partition_of
from tests.simulate.handler import Disturbances
from tests.simulate.member import SimMember
from tests.simulate.plan import GROUP, OFFSETS_TOPIC
from tests.simulate.world import NODE_HOST, World
from tests.simulation.action import Acts
from tests.simulation.conditions import NetworkDisturbance

__all__ = ["perform"]

_ACTS: Final = Acts()
_act, perform = _ACTS.act, _ACTS.perform


# --- members --------------------------------------------------------------------------------------------------------


@_act
def _join(world: World, name: str) -> None:
    world.join(name)


@_act
def _leave(world: World, name: str) -> None:
    if member := world.member(name):
        member.leave()


@_act
def _leave_at_heartbeat(world: World, name: str) -> None:
    if member := world.member(name):
        member.leave(at_heartbeat=True)


@_act
def _cancel(world: World, name: str) -> None:
    if member := world.member(name):
        member.cancel()


@_act
def _restart(world: World, name: str) -> None:
    if member := world.member(name):
        member.restart()


@_act
def _change_protocol(world: World, name: str) -> None:
    """Restart a member with the other group protocol, as in a rolling upgrade or downgrade."""
    if isinstance(member := world.member(name), SimMember):
        member.change_protocol()


@_act
def _restart_standalone(world: World) -> None:
    if world.standalone is not None:
        world.standalone.restart()


@_act
def _crash(world: World, name: str) -> None:
    """Kill the process: its host closes its connections."""
    if member := world.member(name):
        world.network.kill(member.host, name)
        world.network.cut(member.host)
        member.die()


@_act
def _lose_host(world: World, name: str) -> None:
    """Kill the host: its connections stay half-open."""
    if member := world.member(name):
        world.network.half_open(member.host)
        world.network.kill(member.host, name)
        member.die()


@_act
def _raise_in_handler(world: World, name: str) -> None:
    if member := world.member(name):
        member.handler.disturbances.raise_once = True


@_act
def _return_early(world: World, name: str) -> None:
    if member := world.member(name):
        member.handler.disturbances.return_once = True


@_act
def _slow_handler(world: World, name: str, pace: float, seconds: float) -> None:
    if member := world.member(name):
        disturbances = member.handler.disturbances
        disturbances.pace = pace
        world.later(seconds, lambda: setattr(disturbances, "pace", 0.0))


@_act
def _block_handler(world: World, name: str, seconds: float) -> None:
    if member := world.member(name):
        _block_for(world, member.handler.disturbances, seconds)


@_act
def _ignore_cancellation(world: World, name: str, seconds: float) -> None:
    """Block the handler, and let it ignore its cancellation."""
    if member := world.member(name):
        member.handler.disturbances.ignores_cancellation = True
        _block_for(world, member.handler.disturbances, seconds)


def _block_for(world: World, disturbances: Disturbances, seconds: float) -> None:
    disturbances.gate.clear()
    world.later(seconds, disturbances.end)


@_act
def _pause(world: World, name: str, seconds: float) -> None:
    """Pause all partitions that the member owns now, as a user may."""
    if (member := world.member(name)) and (group := member.group):
        group.pause_all()
        world.later(seconds, group.resume_all)


# --- network --------------------------------------------------------------------------------------------------------


def _at_host(
    name: str, host: str, fault: NetworkFault | None = None, latency: float = 0.0
) -> NetworkDisturbance:
    return NetworkDisturbance(name, lambda one, other: host in (one[0], other[0]), fault, latency)


def _at_node(
    world: World, node_id: int, name: str, fault: NetworkFault | None = None, latency: float = 0.0
) -> NetworkDisturbance:
    place = (NODE_HOST, world.port(node_id))
    return NetworkDisturbance(name, lambda one, other: place in patterns_of(one, other), fault, latency)


@_act
def _block_client(world: World, name: str, seconds: float) -> None:
    """Hold back all traffic of a client; it arrives later."""
    if client := world.client(name):
        world.disturb(_at_host(f"traffic of {name} is blocked", client.host, NetworkFault.HANG), seconds)


@_act
def _reset_client(world: World, name: str) -> None:
    if client := world.client(name):
        world.network.cut(client.host)


@_act
def _half_open_client(world: World, name: str) -> None:
    if client := world.client(name):
        world.network.half_open(client.host)


@_act
def _close_client(world: World, name: str) -> None:
    """Let the brokers close a client's connections in order, as they do with idle ones."""
    if client := world.client(name):
        world.network.close_connections(client.host)


@_act
def _slow_client(world: World, name: str, latency: float, seconds: float) -> None:
    if client := world.client(name):
        world.disturb(_at_host(f"the network of {name} is slow", client.host, latency=latency), seconds)


@_act
def _partition_client(world: World, name: str, node_id: int, seconds: float) -> None:
    """Block the traffic between a client and one node."""
    if client := world.client(name):
        host, port = client.host, world.port(node_id)
        disturbance = NetworkDisturbance(
            f"{name} and node {node_id} are partitioned",
            lambda one, other: host in (one[0], other[0]) and port in (one[1], other[1]),
            NetworkFault.HANG,
        )
        world.disturb(disturbance, seconds)


@_act
def _freeze_node(world: World, node_id: int, seconds: float) -> None:
    """Freeze a node as SIGSTOP does: connections are accepted, but nothing is answered."""
    world.disturb(_at_node(world, node_id, f"node {node_id} is frozen", NetworkFault.SILENT), seconds)


@_act
def _refuse_node(world: World, node_id: int, seconds: float) -> None:
    world.disturb(_at_node(world, node_id, f"node {node_id} refuses", NetworkFault.REFUSE), seconds)


@_act
def _reset_node(world: World, node_id: int) -> None:
    world.network.cut(NODE_HOST, world.port(node_id))


@_act
def _close_node(world: World, node_id: int) -> None:
    world.network.close_connections(NODE_HOST, world.port(node_id))


@_act
def _half_open_node(world: World, node_id: int) -> None:
    world.network.half_open(NODE_HOST, world.port(node_id))


@_act
def _slow_node(world: World, node_id: int, latency: float, seconds: float) -> None:
    world.disturb(_at_node(world, node_id, f"node {node_id} is slow", latency=latency), seconds)


# --- brokers --------------------------------------------------------------------------------------------------------


@_act
def _stop_node(world: World, node_id: int, seconds: float) -> None:
    world.stop_node(node_id, seconds)


@_act
def _power_cut(world: World, seconds: float) -> None:
    world.power_cut(seconds)


@_act
def _slow_requests(world: World, node_id: int, delay: float, seconds: float) -> None:
    """Delay every request at a node."""
    world.cluster.slow_node(node_id, delay)
    world.later(seconds, lambda: world.cluster.slow_node(node_id, 0.0))


@_act
def _hold_followers(world: World, topic: str, partition: int, seconds: float) -> None:
    """Stop the replication of a partition: its new records are not readable, and their producer waits.

    For `__consumer_offsets` it is the group's partition: commits and SyncGroup requests are not answered.
    """
    if world.is_down:
        return
    if topic == OFFSETS_TOPIC:
        if topic not in controller_of(world.cluster).topics:
            return
        partition = offsets_partition_of(world.cluster, GROUP)
        world.observer.may_be_unanswered = True
    elif partition >= len(world.cluster.topic(topic).partitions):
        return  # no broker was there to add it
    world.cluster.hold_followers(topic, partition)
    world.later(seconds, lambda: world.release_followers(topic, partition))


@_act
def _move_coordinator(world: World, node_id: int) -> None:
    if world.cluster.nodes[node_id].running:
        world.cluster.move_coordinator(world.group_id, node_id)


@_act
def _move_leader(world: World, topic: str, partition: int, node_id: int) -> None:
    if world.cluster.nodes[node_id].running and partition < len(world.cluster.topic(topic).partitions):
        world.cluster.move_leader(topic, partition, node_id)


@_act
def _add_partitions(world: World, topic: str, total: int) -> None:
    if len(world.cluster.topic(topic).partitions) < total and world.has_nodes:
        world.cluster.create_partitions(topic, total)


@_act
def _fault(world: World, api: str, what: str, times: int) -> None:
    fault = world.cluster.faults.on(api, times=times).optional()
    _FAULTS[what](fault, api)


_RETRIABLE: Final[dict[str, ErrorCode]] = {
    "Fetch": ErrorCode.NOT_LEADER_OR_FOLLOWER,
    "Produce": ErrorCode.NOT_LEADER_OR_FOLLOWER,
    "ListOffsets": ErrorCode.LEADER_NOT_AVAILABLE,
    "Metadata": ErrorCode.LEADER_NOT_AVAILABLE,
}

_FAULTS: Final[dict[str, Callable[[BrokerFault, str], object]]] = {
    "drop": lambda fault, _: fault.drop(),
    "before": lambda fault, _: fault.disconnect("before"),
    "after": lambda fault, _: fault.disconnect("after"),
    "mid-frame": lambda fault, _: fault.disconnect("mid-frame"),
    "delay": lambda fault, _: fault.delay(5.0),
    "error": lambda fault, api: fault.error(_RETRIABLE.get(api, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)),
    "throttle": lambda fault, _: fault.throttle(700),
}


@_act
def _produce(world: World, topic: str, count: int) -> None:
    world.producer.send(topic, count)
