"""JsonLogFormatter: one object for each line, with the fields of the event."""

from __future__ import annotations

import json
import logging
import sys

from asyncgroup.log_events import log_fields
from asyncgroup.model import TopicPartition
from asyncgroup.telemetry import JsonLogFormatter


def record(text: str, *values: object, **more: object) -> logging.LogRecord:
    made = logging.LogRecord("asyncgroup.group", logging.WARNING, __file__, 1, text, values, None)
    made.created = 1_700_000_000.25
    for name, value in more.items():
        setattr(made, name, value)
    return made


def test_a_line_without_an_event() -> None:
    line = JsonLogFormatter().format(record("%s\nfailed", "é"))
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250+00:00",
        "level": "WARNING",
        "logger": "asyncgroup.group",
        "message": "é\nfailed",
    }


def test_a_line_with_an_event_has_its_fields_in_one_order() -> None:
    fields = log_fields("offset_reset", tp=TopicPartition("orders", 3), offset=7, error=KeyError("x"))
    found = json.loads(JsonLogFormatter().format(record("reset", **dict(reversed(fields.items())))))
    assert list(found)[4:] == ["event", "topic", "partition", "offset", "error"]
    assert (found["event"], found["partition"], found["error"]) == ("offset_reset", 3, "KeyError")


def test_exceptions_stacks_and_values_that_json_does_not_have() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        made = record("failed", exc_info=sys.exc_info(), stack_info="Stack:\n  here", group={1})
    found = json.loads(JsonLogFormatter().format(made))
    assert found["exception"].endswith("ValueError: two\nlines")
    assert found["stack"] == "Stack:\n  here"
    assert found["group"] == "{1}"
    other = record("failed", exc_text="from another process")
    assert json.loads(JsonLogFormatter().format(other))["exception"] == "from another process"
