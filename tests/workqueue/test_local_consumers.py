"""Local consumers: the order of Pulsar's documentation, permits, and random programs of records and consumers."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from hypothesis import given, strategies as st

from asyncgroup.ack_window import AckWindow
from asyncgroup.errors import ConfigError, UsageError
from asyncgroup.hashing.key_ranges import KeyRange, key_hash
from asyncgroup.model import Record, TopicPartition
from asyncgroup.workqueue.delivery import Delivery, DeliveryState
from asyncgroup.workqueue.dispatcher import Dispatcher
from asyncgroup.workqueue.local_consumers import ConsumerSelector, LocalConsumer
from asyncgroup.workqueue.modes import Mode
from asyncgroup.workqueue.partition_work import PartitionWork


def delivery(offset: int = 0, key: bytes | None = None) -> Delivery:
    return Delivery(Record("orders", 0, offset, key=key), 1, None, None, None)


def selector(mode: Mode, *consumers: LocalConsumer) -> ConsumerSelector:
    found = ConsumerSelector(mode)
    for consumer in consumers:
        found.add(consumer)
    return found


def dispatch(consumers: ConsumerSelector, keys: list[bytes | None]) -> list[str | None]:
    """Dispatch a record for each key; return the names of the consumers, None for a record that waits."""
    names: list[str | None] = []
    for offset, key in enumerate(keys):
        consumer = consumers.select(key)
        if consumer is not None:
            consumer.put(delivery(offset, key))
        names.append(None if consumer is None else consumer.name)
    return names


KEYS = [b"key-%d" % number for number in range(300)]

# -- priority and turns -------------------------------------------------------------------------------------------------


def figure() -> list[LocalConsumer]:
    """Return the consumers of the example in Pulsar's documentation of `priorityLevel`."""
    table = {"C1": (0, 2), "C2": (0, 1), "C3": (0, 1), "C4": (1, 2), "C5": (1, 1)}
    return [LocalConsumer(name, priority=level, permits=permits) for name, (level, permits) in table.items()]


def test_the_order_of_pulsars_documentation() -> None:
    consumers = selector(Mode.SHARED, *figure())
    assert dispatch(consumers, [None] * 8) == ["C1", "C2", "C3", "C1", "C4", "C5", "C4", None]
    assert not consumers.has_permits


def test_the_order_in_which_levels_are_added_does_not_matter() -> None:
    c1, c2, c3, c4, c5 = figure()
    consumers = selector(Mode.SHARED, c4, c1, c5, c2, c3)
    assert dispatch(consumers, [None] * 7) == ["C1", "C2", "C3", "C1", "C4", "C5", "C4"]


def test_keys_do_not_matter_in_mode_shared() -> None:
    consumers = selector(Mode.SHARED, LocalConsumer("a"), LocalConsumer("b"))
    assert dispatch(consumers, [b"key"] * 4) == ["a", "b", "a", "b"]


def test_a_lower_level_is_not_used_while_a_higher_one_has_permits() -> None:
    high = LocalConsumer("high", priority=2, permits=2)
    consumers = selector(Mode.SHARED, LocalConsumer("low", priority=7), high)
    assert dispatch(consumers, [None] * 3) == ["high", "high", "low"]
    assert high.take() is not None
    assert dispatch(consumers, [None] * 2) == ["high", "low"]


def test_a_level_keeps_its_turn_while_a_higher_one_is_used() -> None:
    # with Pulsar's one index for all levels, "b" would receive every second record and "c" none
    first = LocalConsumer("a", permits=1)
    consumers = selector(Mode.SHARED, first, LocalConsumer("b", priority=1), LocalConsumer("c", priority=1))
    names = []
    for _ in range(3):
        names += dispatch(consumers, [None, None])
        assert first.take() is not None
    assert names == ["a", "b", "a", "c", "a", "b"]


def test_selecting_uses_no_permit() -> None:
    consumer = LocalConsumer("a", permits=1)
    consumers = selector(Mode.SHARED, consumer)
    assert consumers.select(None) is consumers.select(None) is consumer
    assert consumer.available == 1


levels = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=8)


def make(table: list[tuple[int, int]]) -> list[LocalConsumer]:
    return [
        LocalConsumer(f"consumer-{number}", priority=level, permits=permits)
        for number, (level, permits) in enumerate(table)
    ]


@given(levels)
def test_without_refills_each_level_is_used_up_in_turns(table: list[tuple[int, int]]) -> None:
    consumers = make(table)
    expected = [
        consumer.name
        for level in range(4)
        for turn in range(4)
        for consumer in consumers
        if consumer.priority == level and consumer.permits > turn
    ]
    assert dispatch(selector(Mode.SHARED, *consumers), [None] * (len(expected) + 1)) == [*expected, None]


@given(levels, st.lists(st.integers(0, 9), max_size=60), st.integers(0, 40))
def test_consumers_of_a_level_receive_equal_numbers_while_all_have_permits(
    table: list[tuple[int, int]], taking: list[int], count: int
) -> None:
    consumers = make(table)
    choice = selector(Mode.SHARED, *consumers)
    for number in taking:  # any state to begin with
        consumer = choice.select(None)
        if consumer is not None:
            consumer.put(delivery())
        consumers[number % len(consumers)].take()
    for consumer in consumers:  # then permits for all
        while consumer.take() is not None:
            pass
        consumer.available = consumer.permits = 1000
    names = Counter(dispatch(choice, [None] * count))
    top = min(consumer.priority for consumer in consumers)
    counts = [names[consumer.name] for consumer in consumers if consumer.priority == top]
    assert sum(counts) == count
    assert max(counts) - min(counts) <= 1


# -- permits ------------------------------------------------------------------------------------------------------------


def test_permits_are_given_back_when_half_of_them_were_used() -> None:
    consumer, refills = LocalConsumer("a", permits=5), []
    consumer.on_refill = lambda: refills.append(consumer.available)
    for offset in range(5):
        consumer.put(delivery(offset))
    assert not consumer.has_permits
    assert consumer.take().record.offset == 0
    assert not consumer.has_permits
    assert consumer.take().record.offset == 1
    assert refills == [2]
    assert consumer.refill_at == consumer.available == 2


def test_a_single_permit_is_given_back_at_once() -> None:
    consumer = LocalConsumer("a", permits=1)
    consumer.put(delivery())
    assert consumer.available == 0
    consumer.take()
    assert consumer.available == 1


def test_no_delivery_without_permits() -> None:
    consumer = LocalConsumer("a", permits=1)
    consumer.put(delivery())
    with pytest.raises(UsageError, match="no permits"):
        consumer.put(delivery(1))
    assert len(consumer.inbox) == 1


def test_nothing_to_take() -> None:
    assert LocalConsumer("a").take() is None


def test_deliveries_that_ended_in_the_inbox_are_dropped_and_their_permits_given_back() -> None:
    consumer = LocalConsumer("a", permits=4)
    handed = [delivery(offset) for offset in range(4)]
    for each in handed:
        consumer.put(each)
    handed[0].state = DeliveryState.LOST
    handed[2].state = DeliveryState.EXPIRED
    assert consumer.take() is handed[1]
    assert consumer.available == 2
    consumer.drop_ended()
    assert list(consumer.inbox) == [handed[3]]
    assert consumer.take() is handed[3]
    assert consumer.available == 4


def test_a_refill_may_dispatch_to_the_same_consumer() -> None:
    consumer = LocalConsumer("a", permits=2)
    consumer.on_refill = lambda: consumer.put(delivery(7))
    consumer.put(delivery(0))
    assert consumer.take().record.offset == 0
    assert [each.record.offset for each in consumer.inbox] == [7]


@given(
    st.sampled_from([Mode.SHARED, Mode.KEY_SHARED]),
    levels,
    st.lists(st.tuples(st.sampled_from(["put", "take", "end", "drop"]), st.integers(0, 20)), max_size=80),
)
def test_no_consumer_exceeds_its_permits(
    mode: Mode, table: list[tuple[int, int]], program: list[tuple[str, int]]
) -> None:
    consumers = make(table)
    choice = selector(mode, *consumers)
    for step, number in program:
        consumer = consumers[number % len(consumers)]
        if step == "put" and (chosen := choice.select(KEYS[number] if number % 3 else None)) is not None:
            chosen.put(delivery(number))
        elif step == "take":
            consumer.take()
        elif step == "end" and consumer.inbox:
            consumer.inbox[number % len(consumer.inbox)].state = DeliveryState.LOST
        elif step == "drop":
            consumer.drop_ended()
        for each in consumers:
            assert 0 <= len(each.inbox) + each.available <= each.permits
            # the permits that are held back never stop a consumer for good
            assert each.has_permits or each.inbox
    for each in consumers:
        while each.take() is not None:
            pass
        assert each.available > each.permits - each.refill_at


# -- keys ---------------------------------------------------------------------------------------------------------------


def test_the_consumer_of_a_key_is_that_of_its_hash() -> None:
    consumers = selector(Mode.KEY_SHARED, LocalConsumer("a"), LocalConsumer("b"), LocalConsumer("c"))
    names = dispatch(consumers, KEYS)
    assert set(names) == {"a", "b", "c"}
    for key, name in zip(KEYS, names, strict=True):
        assert [
            owner
            for owner, ranges in consumers.ranges.items()
            if any(key_hash(key) in each for each in ranges)
        ] == [name]
    assert dispatch(consumers, KEYS) == names
    assert consumers.gaps == ()


def test_a_record_waits_for_the_consumer_of_its_key_and_others_go_on() -> None:
    a, b = LocalConsumer("a", permits=1), LocalConsumer("b", permits=100)
    consumers = selector(Mode.KEY_SHARED, a, b)
    of_a = next(key for key in KEYS if consumers.owner(key) is a)
    of_b = next(key for key in KEYS if consumers.owner(key) is b)
    assert dispatch(consumers, [of_a, of_a, of_b, of_a, of_b]) == ["a", None, "b", None, "b"]
    assert consumers.owner(of_a) is a, "it is still the owner"
    assert consumers.has_permits
    a.take()
    assert dispatch(consumers, [of_a]) == ["a"]


def test_records_without_a_key_are_handled_as_in_mode_shared() -> None:
    consumers = selector(Mode.KEY_SHARED, *figure())
    assert dispatch(consumers, [None] * 8) == ["C1", "C2", "C3", "C1", "C4", "C5", "C4", None]


def test_an_empty_key_is_a_key() -> None:
    consumers = selector(Mode.KEY_SHARED, LocalConsumer("a"), LocalConsumer("b"))
    assert dispatch(consumers, [b""] * 3) == ["b"] * 3  # hash 1: the lowest range


def test_the_priority_does_not_matter_for_keys() -> None:
    consumers = selector(Mode.KEY_SHARED, LocalConsumer("a", priority=5), LocalConsumer("b"))
    assert set(dispatch(consumers, KEYS)) == {"a", "b"}


def test_named_ranges_and_keys_without_a_consumer() -> None:
    consumers = selector(Mode.KEY_SHARED, LocalConsumer("low", key_ranges=[(0, 9999), (20000, 29999)]))
    names = dispatch(consumers, KEYS)
    low = [key_hash(key) < 10000 or 20000 <= key_hash(key) < 30000 for key in KEYS]
    assert names == ["low" if is_low else None for is_low in low]
    assert consumers.gaps == (KeyRange(10000, 19999), KeyRange(30000, 65535))
    consumers.add(LocalConsumer("rest", key_ranges=consumers.gaps))
    assert consumers.gaps == ()
    assert dispatch(consumers, KEYS) == ["low" if is_low else "rest" for is_low in low]


def test_modes_without_keys_have_no_ranges() -> None:
    consumers = selector(Mode.SHARED, LocalConsumer("a"))
    assert consumers.ranges == {}
    assert consumers.gaps == ()
    assert selector(Mode.KEY_SHARED).gaps == (KeyRange(1, 65535),)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=24))
def test_each_key_has_one_consumer_and_only_the_keys_of_the_new_or_old_one_move(
    program: list[tuple[bool, int]],
) -> None:
    consumers, present = ConsumerSelector(Mode.KEY_SHARED), dict[str, LocalConsumer]()
    for is_added, number in program:
        name = f"consumer-{number}"
        before = [consumers.owner(key) for key in KEYS]
        if is_added == (name in present):
            continue
        if is_added:
            changed = present[name] = LocalConsumer(name)
            consumers.add(changed)
        else:
            changed = present.pop(name)
            assert consumers.remove(changed) == []
        after = [consumers.owner(key) for key in KEYS]
        assert set(after) <= (set(present.values()) or {None})
        moved = [(old, new) for old, new in zip(before, after, strict=True) if old is not new]
        assert all((new if is_added else old) is changed for old, new in moved)
        assert consumers.consumers == tuple(present.values())


# -- consumers come and go ----------------------------------------------------------------------------------------------


def test_a_removed_consumer_returns_its_deliveries_that_are_acquired() -> None:
    a, b = LocalConsumer("a"), LocalConsumer("b")
    consumers = selector(Mode.SHARED, a, b)
    dispatch(consumers, [None] * 6)
    a.inbox[1].state = DeliveryState.LOST
    assert [each.record.offset for each in consumers.remove(a)] == [0, 4]
    assert a.closed
    assert not a.has_permits
    assert a.take() is None
    assert consumers.consumers == (b,)
    assert dispatch(consumers, [None] * 2) == ["b", "b"]
    assert consumers.remove(a) == []
    with pytest.raises(UsageError, match="no permits"):
        a.put(delivery())
    with pytest.raises(UsageError, match="closed"):
        consumers.add(a)


def test_a_closed_consumer_receives_nothing() -> None:
    a, b = LocalConsumer("a"), LocalConsumer("b")
    consumers = selector(Mode.SHARED, a, b)
    a.close()
    assert dispatch(consumers, [None] * 2) == ["b", "b"]


def test_removing_another_consumer_of_the_same_name_changes_nothing() -> None:
    a = LocalConsumer("a")
    consumers = selector(Mode.KEY_SHARED, a)
    other = LocalConsumer("a")
    assert consumers.remove(other) == []
    assert not other.closed
    assert consumers.select(b"key") is a


def test_without_consumers_every_record_waits() -> None:
    consumers = selector(Mode.KEY_SHARED, LocalConsumer("a"))
    consumers.remove(consumers.consumers[0])
    assert consumers.select(None) is consumers.select(b"key") is None
    assert not consumers.has_permits
    consumers.add(
        LocalConsumer("b", key_ranges=[(0, 65535)])
    )  # the first consumer decides between the two kinds
    assert dispatch(consumers, [b"key", None]) == ["b", "b"]


@pytest.mark.parametrize("mode", [Mode.EXCLUSIVE, Mode.FAILOVER])
def test_one_consumer_in_modes_that_deliver_in_order(mode: Mode) -> None:
    consumers = selector(mode, LocalConsumer("a"))
    assert dispatch(consumers, [None, b"key"]) == ["a", "a"]
    with pytest.raises(ConfigError, match=f"mode='{mode.value}' is not allowed: shared or key_shared"):
        consumers.add(LocalConsumer("b"))
    assert len(consumers.consumers) == 1


# -- values that are not allowed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("name", ""),
        ("name", None),
        ("name", b"a"),
        ("priority", -1),
        ("priority", 1.0),
        ("priority", True),
        ("permits", 0),
        ("permits", -3),
        ("permits", 2.5),
        ("permits", None),
        ("key_ranges", []),
        ("key_ranges", [(5, 4)]),
        ("key_ranges", [(0, 65536)]),
        ("key_ranges", [(0, 9), (9, 20)]),
        ("key_ranges", "0-9"),
    ],
)
def test_values_that_are_not_allowed(key: str, value: object) -> None:
    argument = "receiver_queue" if key == "permits" else key  # of `queue.consumer`
    with pytest.raises(ConfigError, match=argument):
        LocalConsumer(**{"name": "a", key: value})


def test_a_name_is_used_once() -> None:
    consumers = selector(Mode.SHARED, LocalConsumer("a"))
    with pytest.raises(ConfigError, match="name='a' is not allowed: a name that no other consumer"):
        consumers.add(LocalConsumer("a"))
    consumers.remove(consumers.consumers[0])
    consumers.add(LocalConsumer("a"))


@pytest.mark.parametrize(
    ("mode", "first", "second", "message"),
    [
        (
            Mode.KEY_SHARED,
            [(0, 99)],
            [(50, 200)],
            r"key_ranges=\[50, 200\] .* \[50, 99\] belongs to consumer 'a'",
        ),
        (Mode.KEY_SHARED, [(0, 99)], None, "key_ranges=None is not allowed: hash ranges, as for the other"),
        (Mode.KEY_SHARED, None, [(0, 99)], "None, as for the other consumers"),
        (Mode.SHARED, None, [(0, 99)], "None in mode shared"),
    ],
)
def test_ranges_that_do_not_fit(
    mode: Mode, first: list[tuple[int, int]] | None, second: list[tuple[int, int]] | None, message: str
) -> None:
    consumers = selector(mode, LocalConsumer("a", key_ranges=first))
    before = consumers.ranges
    with pytest.raises(ConfigError, match=message):
        consumers.add(LocalConsumer("b", key_ranges=second))
    assert consumers.ranges == before
    assert len(consumers.consumers) == 1
    assert set(dispatch(consumers, [None] * 3)) == {"a"}


# -- with the dispatcher ------------------------------------------------------------------------------------------------


def dispatcher(mode: Mode, keys: list[bytes | None]) -> Dispatcher:
    queue = Dispatcher(mode, lambda: 0.0, None, lambda failures: 1.0)
    work = PartitionWork(TopicPartition("orders", 0), AckWindow(0))
    queue.add_partition(work)
    queue.offer(work, [Record("orders", 0, offset, key=key) for offset, key in enumerate(keys)])
    return queue


def fill(queue: Dispatcher, consumers: ConsumerSelector) -> None:
    while (found := queue.take()) is not None:
        consumer = consumers.select(queue.outcomes.key_of(found.record))
        assert consumer is not None
        consumer.put(found)


def test_a_key_whose_range_moved_is_not_in_hand_at_two_consumers() -> None:
    queue = dispatcher(Mode.KEY_SHARED, KEYS[:20] * 3)
    consumers = selector(Mode.KEY_SHARED, LocalConsumer("a"))
    orders = defaultdict[bytes, list[tuple[int, str]]](list)
    rounds = 0
    fill(queue, consumers)
    while any(consumer.inbox for consumer in consumers.consumers):
        if rounds < 4:
            consumers.add(
                LocalConsumer(f"new-{rounds}")
            )  # takes over keys whose records are in other inboxes
            fill(queue, consumers)
        acquired = [each.record.key for consumer in consumers.consumers for each in consumer.inbox]
        assert len(acquired) == len(set(acquired))
        for consumer in consumers.consumers:
            if (taken := consumer.take()) is not None:
                orders[taken.record.key].append((taken.record.offset, consumer.name))
                queue.outcomes.ack(taken)
        fill(queue, consumers)
        rounds += 1
    assert len(orders) == 20
    for offsets in orders.values():
        assert [offset for offset, _ in offsets] == sorted(offset for offset, _ in offsets)
        assert len(offsets) == 3
    assert any(len({name for _, name in offsets}) > 1 for offsets in orders.values()), "no key has moved"


def test_deliveries_of_a_removed_consumer_are_released_and_delivered_to_others_in_order() -> None:
    queue = dispatcher(Mode.SHARED, [None] * 6)
    a, b = LocalConsumer("a"), LocalConsumer("b")
    consumers = selector(Mode.SHARED, a, b)
    fill(queue, consumers)
    for each in reversed(consumers.remove(a)):
        queue.outcomes.release(each)
    fill(queue, consumers)
    assert [each.record.offset for each in b.inbox] == [1, 3, 5, 0, 2, 4]
    assert [each.attempt for each in b.inbox] == [1] * 6
