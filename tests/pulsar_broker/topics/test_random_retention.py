"""Topics that delete ledgers, by random steps: nothing is deleted that a subscription or the policy keeps."""

from __future__ import annotations

from itertools import count, pairwise

from hypothesis import given, strategies as st

from asyncgroup.pulsar.wire.enums import InitialPosition
from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar_broker.timing import Timing
from asyncgroup.pulsar_broker.topics.policies import Policies, RetentionPolicies, TopicPolicies
from asyncgroup.pulsar_broker.topics.policy_checks import apply_policies
from asyncgroup.pulsar_broker.topics.topic import BrokerTopic
from tests.pulsar_broker.support import metadata

SIZE = 100
STEP = st.one_of(
    *map(st.just, ["append", "append", "roll", "check", "subscribe", "unsubscribe"]),
    st.tuples(st.just("ack"), st.integers(0, 1), st.integers(0, 9)),
    st.tuples(st.just("wait"), st.sampled_from([1, 60, 900, 15_000])),
)
POLICY = st.builds(RetentionPolicies, st.sampled_from([None, 0.0, 600.0]), st.sampled_from([None, 0, 250]))


class Model:
    """A topic with two subscriptions at most, and what each has acknowledged."""

    def __init__(self, policy: RetentionPolicies) -> None:
        self.now = 1_000_000
        timing = Timing(lambda: self.now, lambda *_: None, lambda _: None)
        self.policy = policy
        self.topic = BrokerTopic(
            TopicName.parse("t"), count(1), timing, TopicPolicies(Policies(retention=policy))
        )
        self.acked: dict[str, set[int]] = {}
        self.closed_at: dict[int, int] = {}  # by the end of each ledger

    def roll(self) -> None:
        end = self.topic.log.end
        if self.topic.log.ledgers()[-1].start < end:
            self.closed_at[end] = self.now
        self.topic.log.roll(self.now)

    def step(self, step: object) -> None:
        log = self.topic.log
        match step:
            case "append":
                self.topic.append(metadata(publish_time=self.now), bytes(SIZE))
            case "roll":
                self.roll()
            case "check":
                self.check()
            case "subscribe":
                name = f"s{len(self.acked)}"
                if len(self.acked) < 2:
                    self.topic.subscription(name, InitialPosition.EARLIEST)
                    self.acked[name] = set(range(log.first))
            case "unsubscribe":
                if self.acked:
                    name, _ = self.acked.popitem()
                    del self.topic.subscriptions[name]
            case ("ack", int(number), int(offset)):
                name, index = f"s{number}", log.first + offset
                if name in self.acked and index < log.end:
                    self.topic.subscriptions[name]._ack(log[index].position, 0)
                    self.acked[name].add(index)
            case ("wait", int(seconds)):
                self.now += seconds * 1000

    def check(self) -> None:
        """Let the topic delete ledgers, and compare what is left."""
        log, before = self.topic.log, self.topic.log.first
        last = log.ledgers()[-1]
        apply_policies(self.topic)
        if log.ledgers()[-1].start != last.start:
            self.closed_at[log.end] = self.now
        kept = self._first_kept(before)
        assert log.first == kept, (before, self.acked, self.closed_at)
        for subscription in self.topic.subscriptions.values():
            assert subscription.read_to >= log.first
            assert subscription.backlog == sum(
                index not in self.acked[subscription.name] for index in range(log.first, log.end)
            )

    def _first_kept(self, first: int) -> int:
        """Return the end of the longest row of ledgers that may be deleted, and has to be."""
        bounds = sorted({first, *(end for end in self.closed_at if end > first)})
        for start, end in pairwise(bounds):
            is_needed = any(not acked.issuperset(range(start, end)) for acked in self.acked.values())
            time, size = self.policy
            is_old = time is not None and self.now - self.closed_at[end] > time * 1000
            is_too_much = size is not None and (self.topic.log.end - end) * SIZE >= size
            if is_needed or not (is_old or is_too_much):
                return start
        return bounds[-1]


@given(POLICY, st.lists(STEP, max_size=60))
def test_what_is_needed_is_kept_and_the_rest_is_not(policy: RetentionPolicies, steps: list[object]) -> None:
    model = Model(policy)
    for step in steps:
        model.step(step)
    model.check()
    model.now += 20_000_000
    model.check()
