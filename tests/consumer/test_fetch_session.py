"""FetchSession against the embedded broker's fetch sessions: both sides must agree on the partitions."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from asyncgroup.broker.log.fetch_sessions import FetchPartitionData, FetchSessions
from asyncgroup.config import ConsumerConfig
from asyncgroup.consumer.fetch_session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    SESSION_VERSION,
    FetchSession,
    PartitionData,
    SessionRequest,
    build_fetch_request,
    sessionless_request,
)
from asyncgroup.errors import ErrorCode, ProtocolError
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m
from tests.profiles import examples

CONFIG = ConsumerConfig()


def topic_id(topic: str, age: int = 0) -> uuid.UUID:
    return uuid.UUID(int=ord(topic) * 1000 + age + 1)


def want(topic: str = "a", offset: int = 0, age: int = 0, limit: int = 100) -> PartitionData:
    return PartitionData(offset, 7, limit, -1, topic_id(topic, age))


A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


class Broker:
    """A broker with nothing but a session cache: each partition is in a response if it has news (`news`) or changed."""

    def __init__(self, slots: int = 10) -> None:
        self.sessions = FetchSessions(now=lambda: 0.0, rng=random.Random(3), slots=slots)
        self.read: dict[Any, int] = {}

    def ask(
        self, request: m.FetchRequest, version: int, news: frozenset[int] = frozenset()
    ) -> m.FetchResponse:
        context = self.sessions.context(request, version)
        self.read = {tuple(key): wanted.fetch_offset for key, wanted in context.wanted}
        fetched = [
            (key, FetchPartitionData(high_watermark=5, records=b"x" if key[1] in news else b""))
            for key, _ in context.wanted
        ]
        error, session_id, reported = context.answer(fetched)
        response = m.FetchResponse(error_code=error, session_id=session_id)
        for (name, number), _ in reported:
            named = {"topic": name} if isinstance(name, str) else {"topic_id": name}
            part = m.FetchResponse.PartitionData(partition_index=number)
            response.responses.append(m.FetchResponse.FetchableTopicResponse(**named, partitions=[part]))
        return response


def exchange(
    session: FetchSession, broker: Broker, wanted: dict[TopicPartition, PartitionData], version: int = 17
) -> bool:
    """Do one fetch; return whether it succeeded."""
    sent = session.next_request(wanted, version)
    response = broker.ask(build_fetch_request(sent, CONFIG, 0.5, version), version, frozenset({1}))
    if response.error_code:
        session.handle_error(response.error_code)
        return False
    names = {ask.topic_id: tp.topic for tp, ask in wanted.items()}
    reported = [
        TopicPartition(topic.topic or names[topic.topic_id], part.partition_index)
        for topic in response.responses
        for part in topic.partitions
    ]
    assert session.handle_response(response, reported) == []
    return True


def test_a_full_request_first_and_then_only_changes() -> None:
    session, broker = FetchSession(1), Broker()
    wanted = {A0: want(), B0: want("b")}
    sent = session.next_request(wanted, 17)
    assert (sent.session_id, sent.epoch, sent.wanted) == (0, INITIAL_EPOCH, wanted)
    assert exchange(FetchSession(1), broker, wanted)
    assert exchange(session, broker, wanted)
    assert session.epoch == 1
    sent = session.next_request({A0: want(offset=9), A1: want()}, 17)
    assert sent.wanted == {A0: want(offset=9), A1: want()}
    assert (sent.session_id, sent.epoch, sent.forgotten) == (session.session_id, 1, [(B0, topic_id("b"))])
    session.handle_response(m.FetchResponse(session_id=session.session_id), [A1])
    sent = session.next_request({A0: want(offset=9), A1: want()}, 17)
    assert (sent.epoch, sent.wanted, sent.forgotten) == (2, {}, []), (
        "nothing has changed, so the request names no partition"
    )


@pytest.mark.parametrize("what", ["offset", "leader epoch", "bytes", "fetched epoch"])
def test_every_change_of_a_partition_is_sent(what: str) -> None:
    session, broker = FetchSession(1), Broker()
    assert exchange(session, broker, {A0: want(), A1: want()})
    changed = {
        "offset": want()._replace(offset=3),
        "leader epoch": want()._replace(leader_epoch=8),
        "bytes": want()._replace(max_bytes=50),
        "fetched epoch": want()._replace(fetched_epoch=7),
    }[what]
    assert session.next_request({A0: changed, A1: want()}, 17).wanted == {A0: changed}


def test_a_recreated_topic_replaces_the_old_one() -> None:
    session, broker = FetchSession(1), Broker()
    assert exchange(session, broker, {A0: want(offset=50)})
    sent = session.next_request({A0: want(age=1)}, 17)
    assert sent.wanted == {A0: want(age=1)}
    assert sent.forgotten == [(A0, topic_id("a"))]


def test_brokers_without_sessions_get_full_requests() -> None:
    session = FetchSession(1)
    for _ in range(2):
        assert session.next_request({A0: want()}, 6) == sessionless_request({A0: want()})
        session.handle_response(m.FetchResponse(), [A0])


@pytest.mark.parametrize(
    ("code", "keeps_id"),
    [
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, False),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, True),
        (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, True),
        (ErrorCode.INCONSISTENT_TOPIC_ID, True),
    ],
)
def test_a_refused_session_is_retried_once_in_a_new_one(code: ErrorCode, *, keeps_id: bool) -> None:
    """As `FetchSessionHandler.handleResponse`: the request names the session to end, if the broker may still have it."""
    session, broker = FetchSession(1), Broker()
    assert exchange(session, broker, {A0: want()})
    known = session.session_id
    session.next_request({A0: want()}, 17)
    assert session.handle_error(code), "retried at once"
    sent = session.next_request({A0: want()}, 17)
    assert (sent.session_id, sent.epoch, sent.wanted) == (
        known if keeps_id else 0,
        INITIAL_EPOCH,
        {A0: want()},
    )
    assert not session.handle_error(code), "but not again without a pause"


def test_other_errors_are_not_retried_at_once() -> None:
    session = FetchSession(1)
    session.next_request({A0: want()}, 17)
    assert not session.handle_error(ErrorCode.UNKNOWN_SERVER_ERROR)


def test_a_response_with_a_partition_of_no_request_is_refused() -> None:
    session, broker = FetchSession(1), Broker()
    session.next_request({A0: want(), A1: want()}, 17)
    with pytest.raises(ProtocolError, match="b-0 is not in the session"):
        session.handle_response(m.FetchResponse(session_id=4), [A0, A1, B0])
    assert exchange(session, broker, {A0: want()})
    session.next_request({A0: want()}, 17)
    with pytest.raises(ProtocolError, match="b-0 is not in the session"):
        session.handle_response(m.FetchResponse(session_id=session.session_id), [B0])
    assert session.next_request({A0: want()}, 17).epoch == INITIAL_EPOCH


@pytest.mark.parametrize("version", [6, 12, 17])
def test_a_first_response_has_to_name_each_partition(version: int) -> None:
    session = FetchSession(1)
    session.next_request({A0: want(), A1: want(), B0: want("b")}, version)
    assert session.handle_response(m.FetchResponse(session_id=4), [A1]) == [A0, B0]
    sent = session.next_request({A0: want(), A1: want(), B0: want("b")}, version)
    assert len(sent.wanted) == 3
    assert sent.session_id == (0 if version < SESSION_VERSION else 4), "the old session ends"


def test_the_first_response_after_a_partition_was_added_has_to_name_it() -> None:
    session, broker = FetchSession(1), Broker()
    assert exchange(session, broker, {A0: want()})
    session.next_request({A0: want(offset=1), A1: want(), B0: want("b")}, 17)
    assert session.handle_response(m.FetchResponse(session_id=session.session_id), [B0]) == [A1]
    session.next_request({A0: want(), B0: want("b")}, 17)
    assert session.handle_response(m.FetchResponse(session_id=4), [A0, B0]) == []
    session.next_request({A0: want(), B0: want("b", age=1)}, 17)
    assert session.handle_response(m.FetchResponse(session_id=4), []) == [B0], "a recreated topic is new"


def test_later_responses_name_what_has_news() -> None:
    session, broker = FetchSession(1), Broker()
    assert exchange(session, broker, {A0: want(), A1: want()})
    session.next_request({A0: want(offset=1), A1: want()}, 17)
    assert session.handle_response(m.FetchResponse(session_id=session.session_id), []) == []
    session.next_request({A0: want(), A1: want(), B0: want("b")}, 17)
    throttled = m.FetchResponse(session_id=session.session_id, throttle_time_ms=50)
    assert session.handle_response(throttled, []) == [], "it was not processed"


def test_an_empty_first_response_with_throttling_is_no_error() -> None:
    session = FetchSession(1)
    session.next_request({A0: want()}, 17)
    session.handle_response(m.FetchResponse(throttle_time_ms=50), [])
    assert session.next_request({A0: want()}, 17).epoch == INITIAL_EPOCH


def test_a_full_session_cache_means_full_requests_until_there_is_room() -> None:
    session, broker = FetchSession(1), Broker(slots=1)
    other = FetchSession(1)
    assert exchange(other, broker, {B0: want("b")})
    for _ in range(2):
        assert exchange(session, broker, {A0: want()})
        assert (session.session_id, session.epoch) == (0, INITIAL_EPOCH)
    broker.ask(build_fetch_request(SessionRequest(other.session_id, FINAL_EPOCH, {}, []), CONFIG, 0, 17), 17)
    assert len(broker.sessions) == 0
    assert exchange(session, broker, {A0: want()})
    assert session.epoch == 1


def test_after_the_last_epoch_comes_one() -> None:
    session, broker = FetchSession(1), Broker()
    assert exchange(session, broker, {A0: want()})
    session.epoch = 2**31 - 1
    session.next_request({A0: want()}, 17)
    session.handle_response(m.FetchResponse(session_id=session.session_id), [])
    assert session.epoch == 1


TPS = st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 3))
STEPS = st.lists(
    st.tuples(
        st.dictionaries(TPS, st.integers(0, 3), max_size=8),
        st.sampled_from(
            ["answered", "answered", "answered", "answer lost", "request lost", "evicted", "recreated"]
        ),
        st.sampled_from([17, 17, 17, 12]),
    ),
    max_size=25,
)


@given(steps=STEPS, slots=st.sampled_from([1, 10]))
@settings(max_examples=examples(250), deadline=None)
def test_the_broker_reads_exactly_the_wanted_partitions(steps: list[Any], slots: int) -> None:
    """With partitions added, dropped and moved by seeks, and with requests and responses lost."""
    session, broker, age, unknown = FetchSession(1), Broker(slots), 0, 0
    if slots == 1:
        exchange(FetchSession(2), broker, {A0: want()})
    for offsets, event, version in steps:
        if event == "recreated":
            age += 1
        wanted = {tp: want(tp.topic, offset, age if tp.topic == "a" else 0) for tp, offset in offsets.items()}
        if not wanted:
            continue  # no request without partitions
        if event == "evicted":
            broker.sessions._sessions.clear()
        if event in ("answer lost", "request lost"):
            request = build_fetch_request(session.next_request(wanted, version), CONFIG, 0.5, version)
            if event == "answer lost":
                unknown += request.session_epoch == INITIAL_EPOCH  # its id was in the lost response
                broker.ask(request, version)
            session.invalidate()
        elif not exchange(session, broker, wanted, version):
            assert event == "evicted", "only an evicted session is refused"
            assert exchange(session, broker, wanted, version), "a new session succeeds"
        if event not in ("answer lost", "request lost"):
            expected = {
                (wanted[tp].topic_id if version >= 13 else tp.topic, tp.partition): wanted[tp].offset
                for tp in wanted
            }
            assert broker.read == expected
            assert len(broker.sessions) <= 1 + unknown, "no session is left open whose id the client knew"
