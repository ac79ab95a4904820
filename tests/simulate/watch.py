"""Eyes on the brokers: every change of the group's state, and every commit that a coordinator takes, as it happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from asyncgroup import TopicPartition
from asyncgroup.broker import EmbeddedCluster, Exchange, GroupView, History
from asyncgroup.broker.coordinator.coordinator import GroupCoordinator
from asyncgroup.error_codes import ErrorCode
from tests.simulate.plan import GROUP
from tests.simulate.story import Story, Violation
from tests.simulate.truth import Truth

__all__ = ["BrokerWatch", "WatchedHistory"]

LIMIT = 1_000_000


class WatchedHistory(History):
    """Tells of each request that arrives and each answer that goes out; between them nothing changes but by timers."""

    def __init__(self, on_event: Callable[[], None]) -> None:
        super().__init__(LIMIT)
        self._on_event = on_event

    def open(self, *args: Any) -> Exchange:
        self._on_event()
        return super().open(*args)

    def close(self, *args: Any) -> None:
        super().close(*args)
        self._on_event()


class BrokerWatch:
    """Looks at the cluster whenever something happens there; `fail` takes what it finds."""

    def __init__(
        self,
        truths: dict[str, Truth],
        story: Story,
        name_of: Callable[[str], str],
        fail: Callable[[Violation], None],
    ) -> None:
        self._story, self._name_of, self._fail = story, name_of, fail
        self.truths = truths
        """By group."""
        self._cluster: EmbeddedCluster | None = None
        self._last: tuple[int, str, int] = (-1, "Dead", -1)

    @contextmanager
    def on(self, cluster: EmbeddedCluster) -> Iterator[None]:
        """Watch a cluster that is not entered yet, for as long as the block lasts."""
        cluster._shared.history = WatchedHistory(self.look)
        original = GroupCoordinator.commit
        watch = self

        def commit(self: GroupCoordinator, request: Any, reply: Any, *rest: Any, **more: Any) -> Any:
            def told(result: Any, *rest: Any, **more: Any) -> Any:
                watch._committed(self, request, result)
                return reply(result, *rest, **more)

            return original(self, request, told, *rest, **more)

        self._cluster = cluster
        GroupCoordinator.commit = commit  # type: ignore[method-assign]
        try:
            yield
        finally:
            GroupCoordinator.commit = original  # type: ignore[method-assign]
            self._cluster = None

    # --- the group ----------------------------------------------------------------------------------------------

    def view(self) -> GroupView:
        """The group as its coordinator has it."""
        assert self._cluster is not None
        return self._cluster.group(GROUP)

    def look(self) -> None:
        """Something may have changed."""
        assert self._cluster is not None
        node_id = self._cluster.coordinator(GROUP)
        node = self._cluster.nodes.get(node_id)
        group = None if node is None else node.coordinator.groups.get(GROUP)
        now = (node_id, "Dead", -1) if group is None else (node_id, str(group.state), group.generation_id)
        if now != self._last:
            self._last = now
            self._changed(*now)

    def _changed(self, node_id: int, state: str, generation: int) -> None:
        view = self.view()
        names = ", ".join(f"{self._name_of(m.client_id)}" for m in view.members.values())
        self._story.tell(
            "coordinator", f"node {node_id}: {state}, generation {generation}: {names or 'nobody'}"
        )
        if state == "Stable":
            self._story.count("generations")
            self._check_plan(view)
        self._check_coordinators()

    def _check_plan(self, view: GroupView) -> None:
        """The plan gives each partition to one member at most, who has subscribed to it."""
        owners: dict[TopicPartition, str] = {}
        for member in view.members.values():
            for topic, partitions in member.assignment.items():
                for tp in (TopicPartition(topic, partition) for partition in partitions):
                    if tp in owners:
                        text = f"generation {view.generation}: {tp} belongs to {owners[tp]} and {member.member_id}"
                        self._fail(Violation("one owner", text))
                    owners[tp] = member.member_id

    def _check_coordinators(self) -> None:
        """No two nodes answer for the group."""
        assert self._cluster is not None
        nodes = [node for node in self._cluster.nodes.values() if node.running]
        able = [node.id for node in nodes if not node.coordinator.error_for(GROUP)]
        if len(able) > 1:
            self._fail(Violation("one coordinator", f"nodes {able} answer for the group"))

    # --- commits ------------------------------------------------------------------------------------------------

    def _committed(self, coordinator: GroupCoordinator, request: Any, result: Any) -> None:
        truth = self.truths.get(request.group_id)
        if truth is None:
            return
        codes = result if isinstance(result, dict) else dict.fromkeys(request.offsets, result)
        group = coordinator.groups.get(GROUP)
        name = self._name_of(request.member_id) if request.group_id == GROUP else "hermit"
        taken = {tp: request.offsets[tp].offset for tp, code in codes.items() if not code}
        refused = sorted({ErrorCode(code).name for code in codes.values() if code})
        for tp, code in codes.items():
            if code:
                truth.at(tp).refused.add(request.offsets[tp].offset)
        if refused:
            self._story.tell(name, f"commit refused: {', '.join(refused)}")
        if not taken:
            return
        offsets = ", ".join(f"{tp}@{offset}" for tp, offset in sorted(taken.items()))
        self._story.tell(name, f"committed {offsets}")
        self._story.count("commits")
        if request.group_id != GROUP:
            owners = dict.fromkeys(taken, "")
        else:
            owners = {} if group is None else self.view().assignment
        for tp, offset in taken.items():
            try:
                truth.committed(request.member_id, request.generation_id, tp, offset, owners.get(tp))
            except Violation as violation:
                self._fail(violation)
