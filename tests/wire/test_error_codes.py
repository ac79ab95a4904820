"""The table of error codes, compared with Kafka's `Errors` class and with kio's."""

from __future__ import annotations

from zipfile import ZipFile

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

from asyncgroup.error_codes import RETRIABLE, ErrorCode, error_name, is_retriable
from tests.wire.class_file import is_retriable as is_retriable_in, read_errors
from tests.wire.kafka_files import kafka_jar


def test_the_table_matches_kafkas_errors():
    with ZipFile(kafka_jar("kafka-clients")) as jar:
        errors = read_errors(jar)
        retriable = {error.code for error in errors if is_retriable_in(jar, error.exception)}
    assert {error.code: error.name for error in errors} == {code.value: code.name for code in ErrorCode}
    assert retriable == set(RETRIABLE)


def test_kio_has_the_same_names():
    assert {code.value: code.name.upper() for code in KioErrorCode} == {
        code: error_name(code) for code in {code.value for code in KioErrorCode}
    }


def test_kio_has_the_same_retriable_codes():
    known = {code.value for code in KioErrorCode}
    assert {code.value for code in KioErrorCode if code.retriable} == set(RETRIABLE) & known


@pytest.mark.parametrize(
    ("code", "name"), [(0, "NONE"), (-1, "UNKNOWN_SERVER_ERROR"), (27, "REBALANCE_IN_PROGRESS")]
)
def test_names(code, name):
    assert error_name(code) == name
    assert ErrorCode(code).name == name


def test_an_unknown_code_has_a_name_and_is_not_retriable():
    assert error_name(9999) == "UNKNOWN_ERROR_CODE_9999"
    assert not is_retriable(9999)


def test_none_is_not_retriable():
    assert not is_retriable(0)
