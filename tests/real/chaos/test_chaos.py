"""Minutes of faults on three real brokers with five members: by records, batches, explicit commits, static, in a thread.

Members are killed, frozen, disconnected and restarted; the coordinator is frozen repeatedly, so that it continues as a
former coordinator; brokers are killed and restarted, leaders elected. Then the faults end, and the journals are checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from asyncgroup.testing.apache_kafka import ApacheKafka
from tests.real.chaos.brokers import Brokers
from tests.real.chaos.checker import Evidence, Verdict, judge
from tests.real.chaos.member import Settings
from tests.real.chaos.members import Members
from tests.stories.admin import Admin

SECONDS = float(os.environ.get("ASYNCGROUP_CHAOS_SECONDS", "240"))
RATE = 2000
PARTITIONS = 12
SESSION_TIMEOUT = 8.0
OUTAGE = 3.0
FREEZES = 6
CATCH_UP_LIMIT = 180.0


class Load:
    """An idempotent producer of librdkafka in a thread; it adds acknowledged records to the evidence."""

    def __init__(self, servers: str, topic: str, evidence: Evidence) -> None:
        from confluent_kafka import Producer

        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "linger.ms": 10,
                "message.timeout.ms": 120_000,
                "log_level": 0,
            }
        )
        self._topic = topic
        self._evidence = evidence
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self.failed: list[str] = []

    def _run(self) -> None:
        begun, count = time.monotonic(), 0
        while not self._ending.wait(0.02):
            due = int((time.monotonic() - begun) * RATE)
            for number in range(count, due):
                self._producer.produce(
                    self._topic, b"%d" % number, partition=number % PARTITIONS, on_delivery=self._delivered
                )
            count = due
            self._producer.poll(0)
        self._producer.flush(150)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            place = message.partition(), message.offset()
            self._evidence.acknowledged[place] = int(message.value())

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        self._ending.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)


@contextlib.asynccontextmanager
async def going_on(*work: Any) -> AsyncIterator[None]:
    """Run tasks during the context; a failing one ends the story at once."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each) for each in work]
        yield
        for task in tasks:
            task.cancel()


async def caught_up(members: Members, evidence: Evidence) -> None:
    """Wait until every acknowledged record has been delivered."""
    async with asyncio.timeout(CATCH_UP_LIMIT):
        while True:
            seen = {
                each[:2]
                for life in members.lives()
                for session in life.sessions
                for each in session.deliveries
            }
            if evidence.acknowledged.keys() <= seen:
                return
            await asyncio.sleep(1)


def report(verdict: Verdict, evidence: Evidence, members: Members, brokers: Brokers) -> str:
    counted = ", ".join(f"{reason.value}: {count:,}" for reason, count in verdict.reasons.items())
    return (
        f"{len(evidence.acknowledged):,} acknowledged, {verdict.delivered:,} delivered; twice because {counted or '-'}; "
        f"brokers {brokers.counts}; members {members.counts}"
    )


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.parametrize("seed", [int(os.environ.get("ASYNCGROUP_CHAOS_SEED", "1"))])
async def test_nothing_is_lost_and_every_duplicate_has_a_reason(
    kafka_at_hand: None, tmp_path: Path, seed: int, record_property: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    name = uuid.uuid4().hex[:8]
    topic, group_id = f"chaos-{name}", f"chaos-{name}"
    evidence = Evidence(reach=SESSION_TIMEOUT)
    async with ApacheKafka(3, properties={"min.insync.replicas": 2}) as kafka:
        admin = Admin(kafka.bootstrap_servers)
        async with admin.cluster:
            await admin.create_topic(topic, PARTITIONS)
            settings = Settings(
                kind="",
                servers=kafka.bootstrap_servers,
                group_id=group_id,
                topic=topic,
                journal="",
                session_timeout=SESSION_TIMEOUT,
                outage=OUTAGE,
            )
            members = Members(settings, tmp_path, evidence, random.Random(seed))
            brokers = Brokers(kafka, admin, group_id, topic, evidence, random.Random(seed + 1))
            load = Load(kafka.bootstrap_servers, topic, evidence)
            try:
                await members.start()
                load.start()
                async with going_on(brokers.watch(), brokers.elect()):
                    ending = asyncio.Event()
                    async with asyncio.TaskGroup() as storms:
                        storms.create_task(members.storm(ending))
                        storms.create_task(brokers.storm(FREEZES, ending))
                        await asyncio.sleep(SECONDS)
                        ending.set()
                    await load.stop()
                    await caught_up(members, evidence)
                await members.close()
            finally:
                await load.stop()
                members.kill()
    verdict = judge(members.lives(), evidence)
    text = report(verdict, evidence, members, brokers)
    with capsys.disabled():
        print(f"\nseed {seed}: {text}")
    assert load.failed == []
    assert verdict.problems == [], text
    if SECONDS >= 240:
        assert brokers.counts["freeze_coordinator"] >= FREEZES
