"""The names of errors for programs: metrics, traces, logs, and the rows of the command line."""

from __future__ import annotations

from asyncgroup.errors import BrokerError

__all__ = ["error_type", "short_error_type"]


def error_type(error: BaseException) -> str:
    """Return Kafka's name of an error of a broker, else the class with its module: `asyncgroup.errors.RequestTimedOut`.

    It is `error.type` of OpenTelemetry's semantic conventions, the label `error` of metrics and the field `error` of log lines. A
    built-in exception has no module, as in `exception.type` of OpenTelemetry's SDK.
    """
    if isinstance(error, BrokerError):
        return error.name
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def short_error_type(error: BaseException) -> str:
    """Return `error_type` without the module, for a column of a table: `RequestTimedOut`."""
    return error.name if isinstance(error, BrokerError) else type(error).__name__
