"""The APIs that the broker serves. Each module of `handlers` that implements one registers it here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from asyncgroup.broker.net.service import ApiHandler
from asyncgroup.wire import messages as m
from asyncgroup.wire.protocol import API_BY_NAME
from asyncgroup.wire.schema import VersionRange

__all__ = ["HANDLERS", "register", "version_ranges"]

HANDLERS: Final[dict[int, ApiHandler]] = {}
"""All handlers, by API key."""

_PRODUCE: Final = 0


def register(
    name: str, versions: tuple[int, int], handle: Callable[..., Any], error_response: Callable[..., Any]
) -> None:
    """Serve the API `name` in these versions, first and last; see `ApiHandler`."""
    key = API_BY_NAME[name].key
    HANDLERS[key] = ApiHandler(name, key, VersionRange(*versions), handle, error_response)


def version_ranges() -> list[m.ApiVersionsResponse.ApiVersion]:
    """Return the version ranges that ApiVersions advertises, ordered by API key.

    Kafka advertises Produce from version 0, although it serves 3 and up: otherwise older librdkafka versions turn
    compression off (KAFKA-18659).
    """
    return [
        m.ApiVersionsResponse.ApiVersion(key, 0 if key == _PRODUCE else low, high)
        for key, (low, high) in ((key, HANDLERS[key].versions) for key in sorted(HANDLERS))
    ]
