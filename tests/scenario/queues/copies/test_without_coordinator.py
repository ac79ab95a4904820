"""Transactional copies while the transaction coordinator is away: they are written when it answers again.

`working(env, "ann", work)` runs the handler `work` with the work queue of the member `ann`. Its `calls` are `begin 0@5#1`, for the
first delivery (`#1`) of the record at offset 5 of partition 0, and then `end 0@5#1`, `error 0@5#1` or `cancelled 0@5#1`.
"""

from __future__ import annotations

import asyncio

import pytest

from asyncgroup.broker.metadata.features import DEFAULT_LEVELS
from asyncgroup.workqueue import DeadLetter
from tests.scenario.queues.copies.transactional_queues import DLQ, Process
from tests.scenario.support import now
from tests.stories.queue_members import acked, send
from tests.stories.virtual import VirtualEnvironment

pytestmark = [pytest.mark.virtual(max_virtual_time=864_000), pytest.mark.usefixtures("no_asyncio_errors")]

APIS = ("InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn")
OUTAGE = 70.0


@pytest.mark.parametrize(
    ("version", "how", "limit"),
    [
        (2, "refuses", 5.0),
        pytest.param(1, "refuses", 5.0, marks=pytest.mark.full),
        pytest.param(1, "silent", 35.0, marks=pytest.mark.full),
        pytest.param(2, "silent", 35.0, marks=pytest.mark.full),
    ],
)
async def test_copies_are_written_when_it_answers_again(
    env: VirtualEnvironment, monkeypatch: pytest.MonkeyPatch, version: int, how: str, limit: float
):
    """The partitions of the topic do not count as stalled because no copy was written in that time."""
    monkeypatch.setitem(DEFAULT_LEVELS, "transaction.version", version)
    async with Process(env, "ann", retry=None, dead_letter=DeadLetter(3, partitions=1)) as ann:
        await send(env, b"reject first")
        await ann.until("end 0@0#1")
        made = [env.cluster.faults.on(api, client_id="ann", times=None) for api in APIS]
        for fault in made:
            (fault.drop() if how == "silent" else fault.error("COORDINATOR_NOT_AVAILABLE")).optional()
        if version == 2:  # partition leaders ask the coordinator
            leader = env.cluster.faults.on("Produce", topic=DLQ, client_id="ann", times=None)
            made.append(leader.drop() if how == "silent" else leader.error("NOT_ENOUGH_REPLICAS"))
        await send(env, b"reject second")
        await asyncio.sleep(OUTAGE)
        for fault in made:
            fault.cancel()
        began = now()
        await ann.until("end 0@1#1")
        assert now() - began < limit
    assert await acked(env) == [0, 1]
