"""ConsumerRotation beside a model that looks at all consumers, and the number of consumers that it looks at."""

from __future__ import annotations

from typing import Any
from unittest.mock import PropertyMock, patch

from hypothesis import given, strategies as st

from asyncgroup.pulsar.wire.commands import CommandSubscribe
from asyncgroup.pulsar_broker.subscriptions.consumer_rotation import LOT, ConsumerRotation
from asyncgroup.pulsar_broker.subscriptions.subscribed_consumer import SubscribedConsumer


def consumer(number: int, priority: int = 0) -> SubscribedConsumer:
    command = CommandSubscribe(
        topic="t", subscription="s", sub_type=1, consumer_id=number, request_id=0, priority_level=priority
    )
    return SubscribedConsumer(command, f"c{number}", -1, lambda *_: None)


class Model:
    """The turn moves to the next of those with the best priority that may take an entry."""

    def __init__(self) -> None:
        self.consumers: list[SubscribedConsumer] = []
        self.turn = self.in_lot = 0

    def next(self) -> SubscribedConsumer | None:
        able = [each for each in self.consumers if each.can_take]
        able = [each for each in able if each.priority == able[0].priority]
        if not able:
            return None
        if self.consumers[self.turn] not in able or self.in_lot >= LOT:
            self.in_lot = 0
            count = len(self.consumers)
            places = [(self.turn + step) % count for step in range(1, count + 1)]
            self.turn = next(place for place in places if self.consumers[place] in able)
        self.in_lot += 1
        return self.consumers[self.turn]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 2)),
        st.tuples(st.just("remove"), st.integers(0, 20)),
        st.tuples(st.just("flow"), st.integers(0, 20), st.integers(1, 30)),
        st.tuples(st.just("push"), st.integers(1, 50)),
        st.tuples(st.just("block"), st.integers(0, 20)),
    ),
    max_size=40,
)


@given(STEPS)
def test_whose_turn_it_is(steps: list[Any]) -> None:
    rotation, model = ConsumerRotation(), Model()
    for number, (kind, *arguments) in enumerate(steps):
        if kind == "add":
            found = consumer(number, arguments[0])
            rotation.add(found)
            model.consumers = sorted([*model.consumers, found], key=lambda each: each.priority)
        elif not model.consumers:
            assert rotation.next() is None
            continue
        elif kind == "push":
            for _ in range(arguments[0]):
                expected = model.next()
                assert rotation.is_any_able == (expected is not None)
                assert rotation.next() is expected
                if expected is not None:
                    expected.permits -= 1
        else:
            found = model.consumers[arguments[0] % len(model.consumers)]
            if kind == "remove":
                rotation.remove(found)
                model.consumers.remove(found)
                model.turn %= max(1, len(model.consumers))
            elif kind == "flow":
                found.permits += arguments[1]
                rotation.refresh(found)
            else:
                found.is_blocked = not found.is_blocked
                rotation.refresh(found)
        assert rotation.consumers == model.consumers


def test_few_consumers_are_looked_at_for_an_entry() -> None:
    rotation = ConsumerRotation()
    consumers = [consumer(number) for number in range(1000)]
    for each in consumers:
        rotation.add(each)
    with patch.object(SubscribedConsumer, "can_take", new_callable=PropertyMock) as can_take:
        can_take.return_value = True
        for each in consumers[::100]:
            rotation.refresh(each)
        can_take.reset_mock()
        for _ in range(1000):
            assert rotation.is_any_able
            assert rotation.next() is not None
        assert can_take.call_count < 5_000
