"""NegativeAcks and ConsumerEpoch: times of redeliveries, and the commands that ask for them."""

from __future__ import annotations

from math import inf

from hypothesis import given, settings, strategies as st

from asyncgroup.pulsar.consumer.acks.epochs import ConsumerEpoch
from asyncgroup.pulsar.consumer.acks.negative_acks import (
    MAX_IDS,
    MAX_STALE,
    NegativeAcks,
    redelivery_commands,
)
from tests.profiles import examples
from tests.pulsar.consumer.support import id_of


def test_the_timer_is_for_the_earliest_redelivery() -> None:
    nacks = NegativeAcks()
    assert nacks.due_at == inf
    nacks.add(id_of(1), 60.0)
    nacks.add(id_of(2), 5.0)
    assert nacks.due_at == 5.0
    assert nacks.take_due(4.9) == []
    assert nacks.take_due(5.0) == [id_of(2)]
    assert (nacks.due_at, len(nacks)) == (60.0, 1)
    nacks.add(id_of(1), 7.0)
    assert nacks.due_at == 7.0
    nacks.add(id_of(1), 9.0)
    assert (nacks.due_at, nacks.take_due(8.0)) == (9.0, [])
    nacks.discard(id_of(1))
    assert nacks.due_at == inf
    nacks.discard(id_of(1))


def test_a_cumulative_acknowledgement_ends_all_before_it() -> None:
    nacks = NegativeAcks()
    messages = [id_of(1), id_of(2, 0), id_of(2, 1), id_of(3)]
    for message in messages:
        nacks.add(message, 1.0)
    nacks.discard_up_to(id_of(2, 0))
    assert [each for each in messages if each in nacks] == [id_of(2, 1), id_of(3)]
    nacks.discard_up_to(id_of(2))
    assert [each for each in messages if each in nacks] == [id_of(3)]
    nacks.clear()
    assert (len(nacks), nacks.due_at) == (0, inf)


def test_only_what_has_arrived_since_a_restart_is_asked_for() -> None:
    nacks = NegativeAcks()
    for number in range(4):
        nacks.add(id_of(number), 5.0)
    nacks.restart()
    assert nacks.holds(id_of(0))
    assert not nacks.holds(id_of(7))
    nacks.add(id_of(1), 5.0)
    nacks.discard(id_of(2))
    assert nacks.take_due(5.0) == [id_of(0), id_of(1)]
    assert not nacks.holds(id_of(3)), "its time has come: it is delivered when it arrives"
    nacks.add(id_of(3), 6.0)
    assert nacks.take_due(6.0) == [id_of(3)]


def test_messages_that_are_acknowledged_in_time_leave_nothing() -> None:
    nacks = NegativeAcks()
    nacks.add(id_of(0), 1.0)
    for number in range(1, 10 * MAX_STALE):
        nacks.add(id_of(number), 60.0)
        nacks.discard(id_of(number))
    assert len(nacks._heap) <= MAX_STALE + 3
    assert nacks.take_due(100.0) == [id_of(0)]


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 20), st.sampled_from(["add", "discard", "take"])),
        max_size=40,
    )
)
@settings(max_examples=examples(200))
def test_each_message_is_due_once_and_never_early(steps: list[tuple[int, int, str]]) -> None:
    nacks, expected, now = NegativeAcks(), dict[int, float](), 0.0
    for number, delay, step in steps:
        if step == "add":
            nacks.add(id_of(number), now + delay)
            expected[number] = now + delay
        elif step == "discard":
            nacks.discard(id_of(number))
            expected.pop(number, None)
        else:
            now += delay
            due = sorted(each for each, at in expected.items() if at <= now)
            assert sorted(each.entry_id for each in nacks.take_due(now)) == due
            for each in due:
                del expected[each]
        assert nacks.due_at == min(expected.values(), default=inf)


def test_a_command_has_each_entry_once_and_at_most_a_thousand() -> None:
    keys = [(1, number) for number in range(MAX_IDS + 1)]
    first, second = redelivery_commands(7, [*keys, *keys])
    assert [one.entry_id for one in first.message_ids] == list(range(MAX_IDS))
    assert [one.entry_id for one in second.message_ids] == [MAX_IDS]
    assert list(redelivery_commands(7, [])) == [], "without ids it would be everything"


def test_entries_of_older_epochs_are_old() -> None:
    epoch = ConsumerEpoch()
    assert not epoch.is_old(0)
    assert epoch.advance() == 1
    assert epoch.is_old(0)
    assert not epoch.is_old(1)
    assert not epoch.is_old(None)
