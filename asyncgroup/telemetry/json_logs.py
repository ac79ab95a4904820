"""JSON logs: a formatter of the standard library's logging, one object for each line."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from asyncgroup.log_events import FIELDS

__all__ = ["JsonLogFormatter"]


class JsonLogFormatter(logging.Formatter):
    """Formats a log record as one line of JSON.

        handler = logging.StreamHandler()
        handler.setFormatter(JsonLogFormatter())
        logging.basicConfig(level=logging.INFO, handlers=[handler])

    The keys `time` (UTC, with milliseconds), `level`, `logger` and `message`; of the lines in `LOG_EVENTS` also `event` and what is known of `group`,
    `topic`, `partition`, `offset`, `generation`, `partitions`, `transactional_id` and `error`; `exception` with the traceback if there is one.
    It formats lines of other loggers as well. A value that JSON does not have is written as text.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without a line break in it."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            line["exception"] = record.exc_text
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line, default=str)
