"""Errors of records name their topic and partition."""

from __future__ import annotations

from asyncgroup.errors import BrokerError, ClosedError
from asyncgroup.model import TopicPartition
from asyncgroup.producer.sending.errors import named_error

TP = TopicPartition("orders", 3)


def test_an_error_without_a_name_gets_one() -> None:
    error = ClosedError("the producer is closed")
    assert str(named_error(error, TP)) == "records for orders-3: the producer is closed"
    assert str(error) == "the producer is closed", "it is a copy"
    assert isinstance(named_error(error, TP), ClosedError)


def test_an_error_with_a_name_keeps_its_text() -> None:
    error = BrokerError(29, "2 records for orders-3", "denied")
    named = named_error(error, TP)
    assert isinstance(named, BrokerError)
    assert (str(named), named.code) == (str(error), 29)
    assert str(named_error(BrokerError(29, "the producer's id"), TP)).startswith(
        "records for orders-3: the prod"
    )


def test_another_programs_error_gets_a_note() -> None:
    named = named_error(KeyError("x"), TP)
    assert (str(named), named.__notes__) == ("'x'", ["raised for a record for orders-3"])
