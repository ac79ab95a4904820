"""Unit tests of incremental fetch sessions."""

from __future__ import annotations

import random
import uuid

import pytest

from asyncgroup.broker.log.fetch_sessions import FetchPartitionData, FetchSessions, next_epoch
from asyncgroup.error_codes import ErrorCode
from asyncgroup.wire import messages as m

NAME_VERSION = 12
ID_VERSION = 13
TOPIC_ID = uuid.UUID(int=5)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def sessions(**options) -> tuple[FetchSessions, Clock]:
    clock = Clock()
    return FetchSessions(now=clock, rng=random.Random(1), **options), clock


def request(*partitions: int, session: int = 0, epoch: int = 0, forget=(), offset: int = 0, **topic):
    fetch = m.FetchRequest
    topic = topic or {"topic": "t"}
    return fetch(
        session_id=session,
        session_epoch=epoch,
        topics=[
            fetch.FetchTopic(
                **topic,
                partitions=[fetch.FetchPartition(partition=p, fetch_offset=offset) for p in partitions],
            )
        ]
        if partitions
        else [],
        forgotten_topics_data=[fetch.ForgottenTopic(**topic, partitions=list(forget))] if forget else [],
    )


def quiet(high_watermark: int = 0) -> FetchPartitionData:
    return FetchPartitionData(high_watermark=high_watermark, log_start_offset=0)


def fetched(context, **news: FetchPartitionData) -> list:
    """Return an unchanged result for each partition of the context, except for those given as `p<number>`."""
    return [(key, news.get(f"p{key[1]}", quiet())) for key, _ in context.wanted]


def established(*partitions: int, **options):
    made, clock = sessions(**options)
    context = made.context(request(*partitions), NAME_VERSION)
    error, session_id, keys = context.answer(fetched(context))
    assert (error, numbers(keys)) == (ErrorCode.NONE, list(partitions))
    assert session_id > 0
    return made, clock, session_id


def numbers(pairs) -> list[int]:
    return [key[1] for key, _ in pairs]


def test_a_sessionless_request_returns_all_partitions():
    made, _ = sessions()
    context = made.context(request(0, 1, epoch=-1), NAME_VERSION)
    assert context.answer(fetched(context)) == (ErrorCode.NONE, 0, [(("t", 0), quiet()), (("t", 1), quiet())])
    assert len(made) == 0


def test_an_incremental_request_returns_only_changed_partitions():
    made, _, session = established(0, 1, 2)
    context = made.context(request(session=session, epoch=1), NAME_VERSION)
    assert numbers(context.wanted) == [0, 1, 2]
    records = FetchPartitionData(high_watermark=9, log_start_offset=0, records=b"data")
    error, same, keys = context.answer(fetched(context, p1=records, p2=quiet(3)))
    assert (error, same, sorted(numbers(keys))) == (ErrorCode.NONE, session, [1, 2])
    context = made.context(request(session=session, epoch=2), NAME_VERSION)
    assert context.answer(fetched(context, p1=quiet(9), p2=quiet(3)))[2] == []


def test_which_results_count_as_changed():
    made, _, session = established(0)
    news = [
        quiet(1),  # high watermark
        FetchPartitionData(high_watermark=1, log_start_offset=1),
        FetchPartitionData(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        FetchPartitionData(ErrorCode.NOT_LEADER_OR_FOLLOWER),  # repeated until it is resolved
        FetchPartitionData(high_watermark=1, log_start_offset=1),  # the first success after it
        FetchPartitionData(high_watermark=1, log_start_offset=1, diverging_epoch=(0, 0)),
    ]
    for epoch, each in enumerate(news, 1):
        context = made.context(request(session=session, epoch=epoch), NAME_VERSION)
        assert numbers(context.answer(fetched(context, p0=each))[2]) == [0], each
    context = made.context(request(session=session, epoch=7), NAME_VERSION)
    assert (
        context.answer(fetched(context, p0=FetchPartitionData(high_watermark=1, log_start_offset=1)))[2] == []
    )


def test_partitions_are_added_changed_and_forgotten():
    made, _, session = established(0, 1)
    context = made.context(request(1, 2, session=session, epoch=1, forget=[0], offset=50), NAME_VERSION)
    assert {key[1]: wanted.fetch_offset for key, wanted in context.wanted} == {1: 50, 2: 50}
    assert list(made.keys(session)) == [("t", 1), ("t", 2)]


def test_a_session_without_partitions_ends():
    made, _, session = established(0)
    context = made.context(request(session=session, epoch=1, forget=[0]), NAME_VERSION)
    assert context.answer([]) == (ErrorCode.NONE, 0, [])
    assert len(made) == 0


def test_partitions_take_turns_when_responses_are_full():
    made, _, session = established(0, 1, 2)
    orders = []
    for epoch in range(1, 4):
        context = made.context(request(session=session, epoch=epoch), NAME_VERSION)
        order = numbers(context.wanted)
        orders.append(order)
        full = {f"p{order[0]}": FetchPartitionData(high_watermark=0, log_start_offset=0, records=b"data")}
        context.answer(fetched(context, **full))
    assert orders == [[0, 1, 2], [1, 2, 0], [2, 0, 1]]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"session": 12345}, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        ({"epoch": 2}, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        ({"version": ID_VERSION}, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
    ],
)
def test_errors_of_sessions(change, error):
    made, _, session = established(0)
    change = {"session": session, "epoch": 1, "version": NAME_VERSION, **change}
    context = made.context(request(session=change["session"], epoch=change["epoch"]), change["version"])
    assert context.error == error
    assert context.answer([]) == (error, 0, [])


def test_a_request_that_overtakes_another_one():
    made, _, session = established(0)
    slow = made.context(request(session=session, epoch=1), NAME_VERSION)
    fast = made.context(request(session=session, epoch=2), NAME_VERSION)
    assert fast.answer(fetched(fast))[0] == ErrorCode.NONE
    assert slow.answer(fetched(slow)) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, session, [])


def test_a_full_request_replaces_the_session():
    made, _, session = established(0)
    context = made.context(request(1, session=session, epoch=0), NAME_VERSION)
    _, newer, _ = context.answer(fetched(context))
    assert newer not in (0, session)
    assert made.context(request(session=session, epoch=1), NAME_VERSION).error
    made.context(request(1, session=newer, epoch=-1), NAME_VERSION)
    assert len(made) == 0


def test_sessions_by_topic_id():
    made, _ = sessions()
    context = made.context(request(0, topic_id=TOPIC_ID), ID_VERSION)
    assert [key for key, _ in context.wanted] == [(TOPIC_ID, 0)]
    session = context.answer(fetched(context))[1]
    context = made.context(request(session=session, epoch=1), ID_VERSION)
    assert [key for key, _ in context.wanted] == [(TOPIC_ID, 0)]
    context = made.context(request(session=session, epoch=2, forget=[0], topic_id=TOPIC_ID), ID_VERSION)
    assert len(made) == 0


def test_the_cache_is_bounded_and_idle_sessions_are_evicted():
    made, clock, first = established(0, slots=2, eviction=120.0)
    context = made.context(request(0), NAME_VERSION)
    second = context.answer(fetched(context))[1]
    context = made.context(request(0), NAME_VERSION)
    assert context.answer(fetched(context))[1] == 0
    clock.now = 100.0
    made.context(request(session=first, epoch=1), NAME_VERSION)
    clock.now = 121.0
    context = made.context(request(0), NAME_VERSION)
    third = context.answer(fetched(context))[1]
    assert third not in (0, first, second)
    assert made.context(request(session=second, epoch=1), NAME_VERSION).error
    assert not made.context(request(session=first, epoch=2), NAME_VERSION).error


def test_a_larger_session_evicts_an_older_smaller_one():
    made, clock, first = established(0, slots=1, eviction=120.0)
    clock.now = 100.0
    made.context(request(session=first, epoch=1), NAME_VERSION)
    clock.now = 120.0
    context = made.context(request(0, 1), NAME_VERSION)
    assert context.answer(fetched(context))[1] == 0  # the smaller session is not old enough
    clock.now = 121.0
    context = made.context(request(0), NAME_VERSION)
    assert context.answer(fetched(context))[1] == 0  # the new session is not larger
    context = made.context(request(0, 1), NAME_VERSION)
    assert context.answer(fetched(context))[1] not in (0, first)
    assert made.context(request(session=first, epoch=2), NAME_VERSION).error


def test_epochs():
    assert [next_epoch(epoch) for epoch in (-1, 0, 1, 2**31 - 2, 2**31 - 1)] == [-1, 1, 2, 2**31 - 1, 1]
