"""Marks, resets, responses, lost responses, cancellations and lost claims in any order, against a model of the coordinator.

- A mark that is not dirty is what the coordinator holds.
- No mark is forgotten: once brokers answer again, one commit commits all of them.
- Nothing is committed that was not marked, or whose claim was lost before the request was sent.
- At most one request is in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from hypothesis import given, settings, strategies as st

from asyncgroup.errors import CommitFailedError, ConnectionLost, ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.offsets import Committer
from asyncgroup.testing import VirtualTimeLoop
from tests.offsets.fakes import FakeCluster, answer_commit
from tests.profiles import examples

TPS = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)]
Value = tuple[int, str, int]

PLACES = st.sampled_from(range(len(TPS)))
NUMBERS = st.integers(0, 5)
TEXTS = st.sampled_from(["", "x"])
PARTITION_CODES = st.dictionaries(
    PLACES,
    st.sampled_from(
        [
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.OFFSET_METADATA_TOO_LARGE,
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ]
    ),
    max_size=2,
)
STEPS = st.one_of(
    st.tuples(st.just("mark"), PLACES, NUMBERS, TEXTS, st.integers(-1, 1)),
    st.tuples(st.just("reset"), PLACES, NUMBERS, TEXTS, st.integers(-1, 1)),
    st.tuples(st.just("lose"), PLACES),
    st.tuples(st.just("commit"), st.booleans()),
    st.tuples(st.just("cancel"), st.integers(0, 3)),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.01, 0.3, 2.0])),
    # what the coordinator does with its next request: error codes, whether it processes it, whether the response arrives
    st.tuples(
        st.just("answer"), PARTITION_CODES, st.sampled_from(["heard", "lost before", "lost after"]), NUMBERS
    ),
)


class World:
    """The committer, the coordinator, and the expected state."""

    def __init__(self) -> None:
        self.cluster = FakeCluster(retry_backoff=0.1, retry_backoff_max=0.5)
        self.cluster.coordinators.script = self.script
        self.committer = Committer(self.cluster, "g", retry_max=1)  # type: ignore[arg-type]
        self.stored: dict[TopicPartition, Value] = {}
        self.marked: dict[TopicPartition, set[Value]] = {tp: set() for tp in TPS}
        self.answers: list[Any] = []
        self.calls: list[asyncio.Task[None]] = []
        for tp in TPS:
            self.committer.manage(tp, -1)

    async def script(self, request: Any) -> Any:
        codes, fate, pause = self.answers.pop(0) if self.answers else ({}, "heard", 0)
        if fate == "lost before":
            raise ConnectionLost("before")
        for topic in request.topics:
            for part in topic.partitions:
                tp = TopicPartition(topic.name, part.partition_index)
                value = (part.committed_offset, part.committed_metadata, part.committed_leader_epoch)
                assert value in self.marked[tp], "it was not marked, or the claim was lost"
                if not codes.get(TPS.index(tp)):
                    self.stored[tp] = value
        await asyncio.sleep(pause / 10)
        if fate == "lost after":
            raise ConnectionLost("after")
        return await answer_commit(request, {TPS[place]: code for place, code in codes.items()})

    def check(self) -> None:
        for tp in TPS:
            offsets = self.committer.of(*tp)
            assert offsets.dirty or offsets.value == self.stored.get(tp, (-1, "", -1))
        assert self.cluster.coordinators.most_under_way <= 1

    async def step(self, name: str, *values: Any) -> None:
        if name in ("mark", "reset"):
            tp = TPS[values[0]]
            self.marked[tp].add(tuple(values[1:]))  # type: ignore[arg-type]
            getattr(self.committer.of(*tp), f"{name}_offset")(*values[1:])
        elif name == "lose":
            tp = TPS[values[0]]
            self.committer.drop(tp)
            await asyncio.sleep(4)  # a request in flight may still contain its marks
            self.marked[tp].clear()
            self.committer.manage(tp, *self.stored.get(tp, (-1, "", -1)))
        elif name == "commit":
            self.calls.append(asyncio.create_task(self.committer.commit(retry_rejected=values[0])))
        elif name == "cancel":
            for call in self.calls[-1 - values[0] :]:
                call.cancel()
        elif name == "answer":
            self.answers.append(values)
        else:
            await asyncio.sleep(values[0])


async def live(steps: list[Any]) -> None:
    world = World()
    for step in steps:
        await world.step(*step)
        world.check()
    world.answers.clear()
    for _ in range(2):  # the first call may share a request that was sent under the old script
        with contextlib.suppress(CommitFailedError):
            await world.committer.commit()
        world.answers.clear()
    world.check()
    assert not any(world.committer.of(*tp).dirty for tp in TPS), "all marks are committed"
    for result in await asyncio.gather(*world.calls, return_exceptions=True):
        assert result is None or isinstance(result, (CommitFailedError, asyncio.CancelledError)), result
    await world.committer.aclose()


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(STEPS, max_size=30))
def test_the_committer_and_the_coordinator_agree(steps: list[Any]) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(live(steps))
