"""Environment of stories on a real Apache Kafka; members that are killed or suspended run in their own processes."""

from __future__ import annotations

import asyncio
import signal
import uuid
from pathlib import Path
from typing import Any, Self

from asyncgroup import ConsumerConfig
from asyncgroup.testing.apache_kafka import ApacheKafka
from tests.stories.environment import Environment
from tests.stories.members import LocalMember, Member, ProcessMember

__all__ = ["RealEnvironment"]


class RealEnvironment(Environment):
    """Topics and a group with unique names on a Kafka shared with other tests; the topics are deleted at the end.

    `kafka` is needed only by stories that kill a node; `common` is configuration of all local members. The limit of waits is generous, because it only applies to failures.
    """

    limit = 60.0
    session_timeout = 3.0
    heartbeat_interval = 0.3
    refresh_interval = 0.5

    def __init__(
        self,
        bootstrap_servers: str,
        directory: Path,
        kafka: ApacheKafka | None = None,
        **common: Any,
    ) -> None:
        self._name = uuid.uuid4().hex[:8]
        super().__init__(bootstrap_servers, f"orders-{self._name}", f"group-{self._name}")
        self._directory = directory
        self._kafka = kafka
        self._common = common
        self._topics: list[str] = []
        self._killed: list[int] = []
        self._ticker: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._ticker = asyncio.create_task(self._tick(), name="ticker")
        await self.create_topic("orders", 4)
        return self

    async def __aexit__(self, *error: object) -> None:
        try:
            for node_id in self._killed:
                assert self._kafka is not None
                await asyncio.to_thread(self._kafka.start_node, node_id)
        finally:
            self._ticker.cancel()
            await super().__aexit__(*error)

    async def _clean_up(self) -> None:
        for topic in self._topics:
            await self.admin.delete_topic(topic)

    async def _tick(self) -> None:
        """Ring the bell regularly, because events in other clients and in the broker do not."""
        while True:
            await asyncio.sleep(0.1)
            self.bell.ring()

    async def create_topic(self, name: str, partitions: int) -> str:
        name = await super().create_topic(f"{name}-{self._name}", partitions)
        self._topics.append(name)
        return name

    def _make(self, name: str, config: dict[str, Any], *, frail: bool) -> Member:
        where = (name, self.bell, self.bootstrap_servers, self.group_id)
        if frail:
            return ProcessMember(*where, config, self._directory)
        return LocalMember(*where, ConsumerConfig(**self._common, **config))

    async def crash(self, member: Member) -> None:
        assert isinstance(member, ProcessMember)
        await member.kill()

    async def suspend(self, member: Member) -> None:
        assert isinstance(member, ProcessMember)
        member.signal(signal.SIGSTOP)

    async def resume(self, member: Member) -> None:
        assert isinstance(member, ProcessMember)
        member.signal(signal.SIGCONT)

    async def kill_node(self, node_id: int) -> None:
        assert self._kafka is not None
        self._kafka.kill(node_id)
        self._killed.append(node_id)
