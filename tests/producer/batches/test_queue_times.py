"""QueueTimes against a plain dictionary that is searched, and its size under many changes."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from asyncgroup.model import TopicPartition
from asyncgroup.producer.batches.partition_queue import PartitionQueue
from asyncgroup.producer.batches.schedule import NEVER, QueueTimes
from tests.profiles import examples

QUEUES = [PartitionQueue(TopicPartition("t", number)) for number in range(5)]

TIMES = st.integers(0, 20).map(float)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(QUEUES), TIMES),
        st.tuples(st.just("pop"), st.none(), TIMES),
        st.tuples(st.just("discard"), st.sampled_from(QUEUES), st.just(0.0)),
    ),
    max_size=60,
)


@settings(max_examples=examples(200), deadline=None)
@given(STEPS)
def test_the_earliest_time_of_each_queue_counts(
    steps: list[tuple[str, PartitionQueue | None, float]],
) -> None:
    times, model = QueueTimes(), dict[PartitionQueue, float]()
    for step, queue, at in steps:
        if queue is None:
            due = times.pop_due(at)
            assert [model[each] for each in due] == sorted(model[each] for each in due)
            assert set(due) == {each for each, when in model.items() if when <= at}
            for each in due:
                del model[each]
        elif step == "put":
            times.put(queue, at)
            model[queue] = min(at, model.get(queue, NEVER))
        else:
            times.discard(queue)
            model.pop(queue, None)
        assert times.next == min(model.values(), default=NEVER)
        assert len(times) == len(model)
    assert set(times.pop_due(NEVER)) == set(model)
    assert times.next == NEVER


def test_a_queue_that_is_always_busy_has_one_entry() -> None:
    times = QueueTimes()
    for number in range(10_000):
        times.put(QUEUES[0], 60.0 + number)  # batches that are full long before they have lingered
    assert len(times._heap) == 1
    assert repr(times) == "<QueueTimes of 1 partitions, next at 60>"
