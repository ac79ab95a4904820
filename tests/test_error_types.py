"""One spelling of an error in metrics, traces and logs, and a short one for tables."""

import json
import logging

import pytest

from asyncgroup.error_types import error_type, short_error_type
from asyncgroup.errors import BrokerError, RequestTimedOut
from asyncgroup.log_events import log_fields
from asyncgroup.pulsar import PulsarServerError
from asyncgroup.telemetry import JsonLogFormatter


class Outer:
    class ForeignError(Exception):
        pass


@pytest.mark.parametrize(
    ("error", "name", "short"),
    [
        (BrokerError(29, "topic 'a'"), "TOPIC_AUTHORIZATION_FAILED", "TOPIC_AUTHORIZATION_FAILED"),
        (BrokerError(12_345, "topic 'a'"), "UNKNOWN_ERROR_CODE_12345", "UNKNOWN_ERROR_CODE_12345"),
        (PulsarServerError(11, "lookup of a"), "TopicNotFound", "TopicNotFound"),
        (
            PulsarServerError(99, "lookup of a"),
            "asyncgroup.pulsar.errors.PulsarServerError",
            "PulsarServerError",
        ),
        (RequestTimedOut("no answer"), "asyncgroup.errors.RequestTimedOut", "RequestTimedOut"),
        (LookupError("x"), "LookupError", "LookupError"),
        (json.JSONDecodeError("x", "y", 0), "json.decoder.JSONDecodeError", "JSONDecodeError"),
        (Outer.ForeignError(), f"{__name__}.Outer.ForeignError", "ForeignError"),
    ],
)
def test_an_error_has_one_name(error: Exception, name: str, short: str) -> None:
    assert (error_type(error), short_error_type(error)) == (name, short)
    assert log_fields("lost", error=error)["error"] == name


def test_a_json_line_has_the_name_of_metrics_and_traces() -> None:
    record = logging.makeLogRecord({"msg": "x", **log_fields("lost", error=RequestTimedOut("no answer"))})
    assert json.loads(JsonLogFormatter().format(record))["error"] == "asyncgroup.errors.RequestTimedOut"
