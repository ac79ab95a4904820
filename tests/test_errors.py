"""The error classes: the tree in the module docstring matches the code, and the messages."""

from __future__ import annotations

import inspect
import re

import pytest

from asyncgroup import errors
from asyncgroup.error_codes import ErrorCode, error_name, is_retriable
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    CommitFailedError,
    ConfigError,
    DeliveryFailedError,
    SessionEnd,
)
from asyncgroup.model import TopicPartition

CLASSES = {
    name: cls
    for name, cls in vars(errors).items()
    if inspect.isclass(cls) and issubclass(cls, BaseException) and cls.__module__ == errors.__name__
}
LINE = re.compile(
    r"^(?P<rails>[│├└─ ]*)(?P<name>[A-Z]\w+)(?: \(also (?P<also>\w+)\))?(?:\s{2,}(?P<text>.+))?$"
)


def drawn() -> dict[str, tuple[str | None, str | None]]:
    """Return the parent and the additional base of each class, as drawn in the docstring."""
    tree: dict[str, tuple[str | None, str | None]] = {}
    above: list[str] = []
    lines = inspect.getdoc(errors).splitlines()  # type: ignore[union-attr]
    for line in lines[lines.index("AsyncGroupError") :]:
        found = LINE.match(line)
        assert found, line
        depth = len(found["rails"]) // 4
        assert not depth or found["text"], f"{found['name']} has no explanation"
        above[depth:] = [found["name"]]
        tree[found["name"]] = (above[depth - 1] if depth else None, found["also"])
    return tree


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    made = {}
    for name, cls in CLASSES.items():
        parents = [base.__name__ for base in cls.__bases__ if base.__name__ in CLASSES]
        others = [base.__name__ for base in cls.__bases__ if base.__name__ not in {*CLASSES, "Exception"}]
        others += parents[1:]
        assert len(others) <= 1
        made[name] = (parents[0] if parents else None, others[0] if others else None)
    assert drawn() == made


def test_every_class_is_exported_and_explained() -> None:
    assert set(errors.__all__) == {*CLASSES, "ErrorCode"}
    assert errors.__all__ == sorted(errors.__all__)
    for cls in CLASSES.values():
        assert issubclass(cls, AsyncGroupError)
        assert cls.__doc__


def test_a_broker_error_carries_code_name_and_whether_to_retry() -> None:
    error = BrokerError(ErrorCode.NOT_COORDINATOR, "group 'g'", "moved")
    assert (error.code, error.name, error.retriable, error.what) == (16, "NOT_COORDINATOR", True, "group 'g'")
    assert str(error) == "group 'g': NOT_COORDINATOR (16): moved"
    assert not BrokerError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "group 'g'").retriable


def test_an_unknown_error_code_has_a_name() -> None:
    error = BrokerError(4711, "topic 't'")
    assert error.name == "UNKNOWN_ERROR_CODE_4711"
    assert not error.retriable
    assert error_name(-1) == "UNKNOWN_SERVER_ERROR"
    assert error_name(0) == "NONE"
    assert not is_retriable(0)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConfigError("linger", -1, "0 or more"), "linger=-1 is not allowed: 0 or more"),
        (ConfigError("no topics were given"), "no topics were given"),
    ],
)
def test_config_error_messages(error: ConfigError, text: str) -> None:
    assert str(error) == text
    assert isinstance(error, ValueError)


def test_commit_failures_are_listed_in_order_of_partitions() -> None:
    failed = {TopicPartition("t", number): BrokerError(27, f"t-{number}") for number in (2, 1)}
    error = CommitFailedError("g", failed)
    assert error.errors == failed
    assert "offsets of 2 partition(s) not committed: t-1: t-1: REBALANCE_IN_PROGRESS" in str(error)
    many = {TopicPartition("t", number): BrokerError(3, "gone") for number in range(12)}
    text = str(CommitFailedError("g", many))
    assert "offsets of 12 partition(s)" in text
    assert text.endswith("t-9: gone: UNKNOWN_TOPIC_OR_PARTITION (3); and 2 more")


def test_delivery_failures_are_counted() -> None:
    failed = {
        TopicPartition("t", 1): (3, BrokerError(10, "3 records for t-1")),
        TopicPartition("s", 0): (2, BrokerError(29, "2 records for s-0")),
    }
    error = DeliveryFailedError(failed)
    assert (error.count, error.failed) == (5, failed)
    assert str(error).startswith(
        "5 records not delivered: 2 records for s-0: TOPIC_AUTHORIZATION_FAILED (29); 3"
    )


def test_causes_of_a_sessions_end_are_no_broker_errors() -> None:
    ends = [cls for cls in CLASSES.values() if issubclass(cls, SessionEnd) and cls is not SessionEnd]
    assert len(ends) == 9
    assert not any(issubclass(cls, (BrokerError, ConfigError)) for cls in ends)


def test_retriable_errors() -> None:
    """Besides BrokerError, which depends on its code: only errors after which the outcome of a request is unknown."""
    retriable = {name for name, cls in CLASSES.items() if cls.retriable}
    assert retriable == {
        "TransportError",
        "ConnectError",
        "ConnectionLost",
        "MalformedResponse",
        "RequestTimedOut",
        "NoBrokersError",
    }
