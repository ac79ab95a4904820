"""ClusterView and merge: the view after each response, in any order of responses."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from asyncgroup.cluster.metadata import (
    BrokerInfo,
    ClusterView,
    leader_and_epoch,
    merge,
    with_doubt,
    with_leader,
)
from asyncgroup.errors import ErrorCode
from asyncgroup.model import TopicPartition
from asyncgroup.wire import messages as m

Topic = m.MetadataResponse.MetadataResponseTopic
Partition = m.MetadataResponse.MetadataResponsePartition
Broker = m.MetadataResponse.MetadataResponseBroker

ONE, TWO = UUID(int=1), UUID(int=2)
TP = TopicPartition("t", 0)


def response(*topics: Topic, nodes: int = 3) -> m.MetadataResponse:
    brokers = [Broker(number, f"kafka{number}", 9092, None) for number in range(1, nodes + 1)]
    return m.MetadataResponse(cluster_id="c", controller_id=1, brokers=brokers, topics=list(topics))


def topic(
    leaders: dict[int, tuple[int, int]], topic_id: UUID = ONE, name: str = "t", error: int = 0
) -> Topic:
    parts = [Partition(0, number, leader, epoch) for number, (leader, epoch) in leaders.items()]
    return Topic(error_code=error, name=name, topic_id=topic_id, partitions=parts)


def view_of(*topics: Topic) -> ClusterView:
    return merge(ClusterView(), response(*topics), None, 0.0)


def test_view_lookups() -> None:
    view = view_of(topic({1: (2, 5), 0: (1, 4)}))
    assert view.cluster_id == "c"
    assert sorted(view.brokers) == [1, 2, 3]
    assert view.topics["t"].numbers == [0, 1]
    assert view.leader(TP) == 1
    assert view.leader(TopicPartition("t", 7)) == view.leader(TopicPartition("other", 0)) == -1
    assert leader_and_epoch(view, TP) == (1, 4)
    assert leader_and_epoch(view, TopicPartition("t", 7)) == (-1, -1)
    assert view.partition_counts(["t", "other"]) == {"t": 2}


def test_a_leader_that_is_not_among_the_brokers_counts_as_none() -> None:
    view = view_of(topic({0: (9, 1)}))
    assert view.leader(TP) == -1
    assert leader_and_epoch(view, TP) == (-1, 1)


def test_partitions_with_a_leader_are_writable() -> None:
    known = view_of(topic({2: (1, 1), 0: (3, 1), 1: (-1, 2)})).topics["t"]
    assert (known.numbers, known.writable) == ([0, 1, 2], [0, 2])


def test_a_view_is_immutable() -> None:
    view = view_of(topic({0: (1, 1)}))
    with pytest.raises(TypeError):
        view.topics["t"] = view.topics["t"]  # type: ignore[index]
    with pytest.raises(TypeError):
        view.topics["t"].partitions[0] = view.topics["t"].partitions[0]  # type: ignore[index]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 6)), min_size=1, max_size=12))
def test_the_newest_epoch_wins_in_any_order(answers: list[tuple[int, int]]) -> None:
    """KIP-320: a stale response never changes a partition back to an older leader."""
    view = ClusterView()
    newest = -1
    for number, (leader, epoch) in enumerate(answers):
        view = merge(view, response(topic({0: (leader, epoch)})), ["t"], number)
        newest = max(newest, epoch)
        info = view.partition("t", 0)
        assert info is not None
        assert info.leader_epoch == newest
    last_of_newest = [leader for leader, epoch in answers if epoch == newest][-1]
    assert view.leader(TP) == last_of_newest
    assert view.updated_at == len(answers) - 1


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(1, 3), st.integers(0, 6)),
        min_size=1,
        max_size=12,
    )
)
def test_leader_epochs_never_decrease(steps: list[tuple[bool, int, int]]) -> None:
    view, epoch_before = view_of(topic({0: (1, 0)})), 0
    for is_hint, leader, epoch in steps:
        if is_hint:
            changed = with_leader(view, TP, leader, epoch, ())
            assert (changed is view) == (epoch <= epoch_before)
            view = changed
        else:
            view = merge(view, response(topic({0: (leader, epoch)})), ["t"], 0.0)
        info = view.partition("t", 0)
        assert info is not None
        assert info.leader_epoch >= epoch_before
        epoch_before = info.leader_epoch


def test_a_recreated_topic_may_have_smaller_epochs_and_fewer_partitions() -> None:
    before = view_of(topic({0: (1, 9), 1: (2, 9)}, ONE))
    after = merge(before, response(topic({0: (3, 0)}, TWO)), ["t"], 1.0)
    assert after.leader(TP) == 3
    assert after.topics["t"].numbers == [0]


def test_a_stale_response_does_not_remove_partitions() -> None:
    """Topics never lose partitions, and a partition count that alternates would cause repeated rebalances."""
    before = view_of(topic({0: (1, 0), 1: (2, 0)}))
    after = merge(before, response(topic({0: (1, 0)})), ["t"], 1.0)
    assert after.topics["t"].numbers == [0, 1]


def test_without_topic_ids_epochs_decide_and_partitions_can_disappear() -> None:
    before = view_of(topic({0: (1, 9), 1: (1, 9)}, m.NO_UUID))
    after = merge(before, response(topic({0: (2, 3)}, m.NO_UUID)), ["t"], 1.0)
    assert after.leader(TP) == 1
    assert after.topics["t"].numbers == [0]
    # in a mixed cluster one broker may be too old to send the topic id
    mixed = merge(view_of(topic({0: (1, 9)}, ONE)), response(topic({0: (2, 3)}, m.NO_UUID)), ["t"], 1.0)
    assert mixed.leader(TP) == 1


def test_responses_without_epochs_are_applied() -> None:
    before = view_of(topic({0: (1, -1)}, m.NO_UUID))
    assert merge(before, response(topic({0: (2, -1)}, m.NO_UUID)), ["t"], 1.0).leader(TP) == 2


def test_topics_no_longer_requested_are_dropped() -> None:
    before = view_of(topic({0: (1, 0)}), topic({0: (1, 0)}, TWO, "other"))
    after = merge(before, response(topic({0: (1, 0)})), ["t"], 1.0)
    assert set(after.topics) == {"t"}


def test_topics_that_were_not_requested_are_ignored() -> None:
    """A Metadata request of version 0 cannot request no topics."""
    assert not merge(ClusterView(), response(topic({0: (1, 0)})), [], 0.0).topics


def test_unknown_topics_are_not_in_the_view_and_unauthorized_ones_have_their_error() -> None:
    unknown = Topic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name="t")
    assert "t" not in merge(view_of(topic({0: (1, 0)})), response(unknown), ["t"], 1.0).topics
    forbidden = Topic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name="t")
    view = merge(ClusterView(), response(forbidden), ["t"], 1.0)
    assert view.topics["t"].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_with_leader_adds_an_unknown_broker() -> None:
    view = view_of(topic({0: (1, 0)}))
    assert with_leader(view, TP, 7, 1, ()) is view, "there is no address to send to"
    hinted = with_leader(view, TP, 7, 1, [BrokerInfo(7, "kafka7", 9092)])
    assert hinted.leader(TP) == 7
    assert hinted.brokers[7].host == "kafka7"


def test_metadata_wins_over_a_leader_that_was_named_by_a_response_and_refused() -> None:
    named = with_leader(view_of(topic({0: (1, 5)})), TP, 2, 1000, ())
    refreshed = merge(named, response(topic({0: (1, 5)})), ["t"], 1.0)
    assert refreshed.leader(TP) == 2, "the broker that was asked may be the one that lags"
    assert with_doubt(refreshed, TP, 3) is refreshed, "another node has failed"
    doubted = with_doubt(refreshed, TP, 2)
    assert doubted.leader(TP) == 2, "until the metadata is refreshed"
    assert merge(doubted, response(topic({0: (3, 4)})), ["t"], 2.0).leader(TP) == 2, "that is older still"
    after = merge(doubted, response(topic({0: (3, 6)})), ["t"], 2.0)
    assert (after.leader(TP), after.topics["t"].partitions[0].leader_epoch) == (3, 6)
    assert with_doubt(after, TP, 3) is after, "only a leader named by a response is in doubt"


def test_a_second_leader_named_by_a_response_does_not_make_the_first_one_certain() -> None:
    view = view_of(topic({0: (1, 5)}))
    named = with_leader(with_leader(view, TP, 2, 1000, ()), TP, 3, 2000, ())
    assert merge(with_doubt(named, TP, 3), response(topic({0: (1, 5)})), ["t"], 1.0).leader(TP) == 1


def test_metadata_wins_over_a_leader_that_was_named_by_a_response_and_does_not_exist() -> None:
    named = with_leader(view_of(topic({0: (1, 5)})), TP, 7, 1000, [BrokerInfo(7, "kafka7", 9092)])
    assert merge(named, response(topic({0: (1, 5)})), ["t"], 1.0).leader(TP) == 1


def test_with_leader_ignores_unknown_partitions_and_missing_leaders() -> None:
    view = view_of(topic({0: (1, 0)}))
    assert with_leader(view, TopicPartition("t", 9), 2, 5, ()) is view
    assert with_leader(view, TopicPartition("other", 0), 2, 5, ()) is view
    assert with_leader(view, TP, -1, -1, ()) is view


@pytest.mark.parametrize(
    ("numbers", "kept"),
    [
        ([0, 1, 2], [0, 1, 2]),
        ([0, 2, 3], [0]),
        ([0, 1, 2**31 - 1], [0, 1]),
        ([-1, 0, 1], [0, 1]),
        ([5], []),
        ([], []),
    ],
)
def test_partitions_after_a_gap_are_ignored(numbers: list[int], kept: list[int]) -> None:
    """Assignors take a partition count as partitions 0 to count - 1, so a response with a gap is not usable as it is."""
    assert view_of(topic(dict.fromkeys(numbers, (1, 1)))).topics["t"].numbers == kept


def test_a_gap_in_a_response_does_not_remove_known_partitions() -> None:
    known = view_of(topic(dict.fromkeys(range(3), (1, 1))))
    later = merge(known, response(topic({0: (2, 2), 7: (2, 2)})), None, 1.0)
    assert later.topics["t"].numbers == [0, 1, 2]
    assert later.leader(TP) == 2
