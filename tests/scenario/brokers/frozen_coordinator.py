"""A group coordinator that is suspended (as by SIGSTOP) and resumes after another broker has taken over."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from asyncgroup import ErrorCode as E
from asyncgroup.broker import Fault
from tests.stories.virtual import HOST, VirtualEnvironment

__all__ = ["FrozenCoordinator"]


class FrozenCoordinator:
    """The coordinator of the group `g`. While it is frozen connections to it are accepted and nothing is answered; what
    is sent to it waits in its sockets.
    """

    def __init__(self, env: VirtualEnvironment) -> None:
        self.env = env
        self.node: int = env.cluster.coordinator(env.group_id)
        self.port = env.cluster.nodes[self.node].port
        self.faults: list[Fault] = []

    def freeze(self) -> None:
        """Suspend the broker."""
        self.env.network.blackhole(HOST, self.port, connect="accept")

    def fail_over(self, to: int | None = None) -> int:
        """Move the group and the partitions to another broker; return its node id."""
        cluster, topic = self.env.cluster, self.env.topic
        node = to or next(n for n in sorted(cluster.nodes) if n != self.node)
        cluster.move_coordinator(self.env.group_id, node)
        for partition in range(len(cluster.topic(topic).partitions)):
            if cluster.leader(topic, partition) == self.node:
                cluster.move_leader(topic, partition, node)
        return node

    def thaw(self) -> None:
        """Resume the broker."""
        self.env.network.heal(HOST, self.port)

    def is_former(self, _request: object) -> bool:
        """Return whether another broker is the coordinator."""
        return self.env.cluster.coordinator(self.env.group_id) != self.node

    @contextlib.contextmanager
    def answering_from_stale_state(self, code: E, *, lookups: bool = False) -> Iterator[list[Fault]]:
        """Refuse all members with `code` while it is a former coordinator: in its state their sessions have expired.

        With `lookups` it also still names itself in FindCoordinator responses.
        """
        on = self.env.cluster.faults.on
        self.faults = [
            on(api, node=self.node, where=self.is_former, times=None).error(code).optional()
            for api in ("Heartbeat", "OffsetCommit")
        ]
        if lookups:

            def name_itself(response: object) -> object:
                for found in response.coordinators:  # type: ignore[attr-defined]
                    found.node_id, found.port = self.node, self.port
                return response

            find = on("FindCoordinator", node=self.node, where=self.is_former, times=None)
            self.faults.append(find.mutate(name_itself).optional())
        yield self.faults
        for fault in self.faults:
            fault.cancel()
