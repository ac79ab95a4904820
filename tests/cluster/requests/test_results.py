"""Results by key: merged over nodes and attempts, without any I/O."""

from __future__ import annotations

import pytest

from asyncgroup.cluster.requests.actions import RequestAction
from asyncgroup.cluster.requests.results import IncompleteResponse, Progress, Results
from asyncgroup.errors import AsyncGroupError, BrokerError, ConnectionLost, ErrorCode
from asyncgroup.model import TopicPartition

LOADING = BrokerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "a")
MOVED = BrokerError(ErrorCode.NOT_COORDINATOR, "b")
REFUSED = BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "c")


def parts_of(results: Results[str, int]) -> tuple[dict[str, int], dict[str, AsyncGroupError]]:
    return results.values, results.errors


def test_only_keys_without_a_value_or_a_final_error_are_left() -> None:
    progress: Progress[str, int] = Progress("abcda")
    assert progress.left == ["a", "b", "c", "d"]
    first = Results({"d": 4}, {"a": LOADING, "b": MOVED, "c": REFUSED})
    assert progress.apply(first) is RequestAction.LOOK_UP
    assert progress.left == ["a", "b"]
    assert progress.last_error(["d", "b"]) is MOVED
    assert progress.apply(Results({"b": 2}, {"a": LOADING})) is RequestAction.RETRY
    assert parts_of(progress.results()) == ({"d": 4, "b": 2}, {"c": REFUSED, "a": LOADING})
    assert progress.apply(Results({"a": 1})) is RequestAction.DONE
    assert parts_of(progress.results()) == ({"d": 4, "b": 2, "a": 1}, {"c": REFUSED})


def test_the_last_error_of_a_key_counts() -> None:
    progress: Progress[str, int] = Progress("ab")
    progress.apply(Results({}, {"a": LOADING, "b": LOADING}))
    lost = ConnectionLost("cut")
    progress.apply(Results({}, {"a": lost, "b": REFUSED}))
    assert progress.results().errors == {"a": lost, "b": REFUSED}


def test_the_first_final_error_may_end_the_request() -> None:
    progress: Progress[str, int] = Progress("abc", fails_fast=True)
    assert progress.apply(Results({"a": 1}, {"b": LOADING})) is RequestAction.RETRY
    assert progress.apply(Results({}, {"b": LOADING, "c": REFUSED})) is RequestAction.FAIL
    with pytest.raises(BrokerError, match="GROUP_AUTHORIZATION_FAILED"):
        progress.results().require()


def test_final_errors_alone_end_it_as_well() -> None:
    progress: Progress[str, int] = Progress("a")
    assert progress.apply(Results({}, {"a": REFUSED})) is RequestAction.DONE
    assert progress.results().errors == {"a": REFUSED}


def test_a_response_that_lacks_keys_or_has_too_many() -> None:
    answer = Results({"a": 1, "x": 9}, {"b": REFUSED, "y": REFUSED})
    found = answer.completed(["a", "b", "c", "d"], "the response to Some of node 2")
    assert found.values == {"a": 1}
    assert list(found.errors) == ["b", "c", "d"]
    assert isinstance(found.errors["c"], IncompleteResponse)
    assert str(found.errors["d"]) == "the response to Some of node 2 has no entry for 'c', 'd'"
    partitions: Results[TopicPartition, int] = Results()
    missing = partitions.completed([TopicPartition("orders", 3)], "the response").errors
    assert [str(error) for error in missing.values()] == ["the response has no entry for orders-3"]


def test_a_key_with_both_has_the_error() -> None:
    found = Results({"a": 1}, {"a": REFUSED}).completed(["a"], "it")
    assert parts_of(found) == ({}, {"a": REFUSED})


def test_require() -> None:
    assert Results({"a": 1}, {}).require() == {"a": 1}
    with pytest.raises(BrokerError, match="NOT_COORDINATOR"):
        Results({"a": 1}, {"b": MOVED, "c": REFUSED}).require()


def test_results_in_the_order_of_their_keys() -> None:
    error = BrokerError(1, "b")
    results = Results({"c": 3, "a": 1, "x": 9}, {"d": error, "b": error}).in_order(["a", "b", "c", "d", "e"])
    assert list(results.values.items()) == [("a", 1), ("c", 3)]
    assert list(results.errors) == ["b", "d"]
