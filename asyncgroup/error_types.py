"""The names of errors for programs: metrics, traces, logs, and the rows of the command line."""

from __future__ import annotations

from asyncgroup.errors import AsyncGroupError

__all__ = ["error_type", "short_error_type"]


def error_type(error: BaseException) -> str:
    """Return a broker's name of an error, else the class with its module: `asyncgroup.errors.RequestTimedOut`.

    The name is Kafka's (`TOPIC_AUTHORIZATION_FAILED`) or Pulsar's (`TopicNotFound`).

    It is `error.type` of OpenTelemetry's semantic conventions, the label `error` of metrics and the field `error` of log lines. A
    built-in exception has no module, as in `exception.type` of OpenTelemetry's SDK.
    """
    if (name := _name_of_broker(error)) is not None:
        return name
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def short_error_type(error: BaseException) -> str:
    """Return `error_type` without the module, for a column of a table: `RequestTimedOut`."""
    return _name_of_broker(error) or type(error).__name__


def _name_of_broker(error: BaseException) -> str | None:
    """Return the name that goes with a broker's code: of a BrokerError, or of a PulsarServerError, which is above this file."""
    if not isinstance(error, AsyncGroupError) or not hasattr(error, "code"):
        return None
    name = getattr(error, "name", None)
    return name if isinstance(name, str) and name.isidentifier() else None
