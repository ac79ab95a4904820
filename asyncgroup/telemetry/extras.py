"""The error if a package is missing that is an optional part of asyncgroup, with what to install."""

from __future__ import annotations

import importlib.util

from asyncgroup.errors import AsyncGroupError

__all__ = ["TelemetryUnavailable", "require_package"]


class TelemetryUnavailable(AsyncGroupError):
    """A package that exports metrics or spans is not installed; the message says how to install it."""


def require_package(module: str, package: str, extra: str) -> None:
    """Raise TelemetryUnavailable unless `module`, of a distribution `package`, can be imported."""
    try:
        found = importlib.util.find_spec(module)
    except ImportError:  # of a package above it
        found = None
    if found is None:
        raise TelemetryUnavailable(f"{package} is not installed: pip install 'asyncgroup[{extra}]'")
