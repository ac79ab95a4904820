"""Test scene: a committer of three partitions on a fake cluster."""

from __future__ import annotations

from typing import Any

from asyncgroup.errors import (
    BrokerError,
)
from asyncgroup.model import TopicPartition
from asyncgroup.offsets import Committer
from tests.offsets.fakes import FakeCluster, answer_commit, committed_by

__all__ = ["A0", "A1", "B0", "Scene"]

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


class Scene:
    """A committer of three partitions on a fake cluster."""

    def __init__(self, *, retry_max: int = 3, **kwargs: Any) -> None:
        self.commits: list[tuple[dict, dict | None]] = []
        self.lost: list[BrokerError] = []
        self.cluster = FakeCluster(hooks=[self], retry_backoff=0.1, retry_backoff_max=1.0)
        self.coordinator = self.cluster.coordinators
        self.manager = Committer(
            self.cluster,  # type: ignore[arg-type]
            "g",
            retry_max=retry_max,
            on_lost=self.lost.append,
            **kwargs,
        )
        self.marks = {tp: self.manager.manage(tp, 10) for tp in (A0, A1, B0)}

    def on_commit(self, group_id: str, offsets: dict, error: dict | None) -> None:
        assert group_id == "g"
        self.commits.append((offsets, error))

    def answer(self, *answers: Any) -> None:
        """Script the responses: error codes, or an exception to raise; the last one is repeated."""
        left = list(answers)

        async def script(request: Any) -> Any:
            answer = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(answer, Exception):
                raise answer
            return await answer_commit(request, answer)

        self.coordinator.script = script

    @property
    def sent(self) -> list[dict[TopicPartition, tuple[int, str]]]:
        return [committed_by(request) for _, request in self.coordinator.requests]
