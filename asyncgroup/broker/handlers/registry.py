"""The APIs that the broker serves. Each module of `handlers` that implements one registers it here."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from asyncgroup.broker.net.service import ApiHandler
from asyncgroup.errors import AsyncGroupError
from asyncgroup.wire import messages as m
from asyncgroup.wire.apis import API_BY_NAME, APIS
from asyncgroup.wire.schema import VersionRange

__all__ = ["HANDLERS", "HandlersMissing", "check_all_registered", "register", "version_ranges"]

HANDLERS: Final[dict[int, ApiHandler]] = {}
"""All handlers, by API key."""

_PRODUCE: Final = 0


class HandlersMissing(AsyncGroupError, ImportError):
    """Modules of request handlers are missing, as in a program that was frozen without them."""


def register(
    name: str, versions: tuple[int, int], handle: Callable[..., Any], error_response: Callable[..., Any]
) -> None:
    """Serve the API `name` in these versions, first and last; see `ApiHandler`."""
    key = API_BY_NAME[name].key
    HANDLERS[key] = ApiHandler(name, key, VersionRange(*versions), handle, error_response)


def check_all_registered(keys: Collection[int]) -> None:
    """Raise HandlersMissing unless `keys` contain those of all APIs whose messages exist.

    The modules are found by listing the package's directory, so that a missing one causes no error at its import. An API
    whose messages are added therefore gets a handler at the same time.
    """
    missing = [api.name for key, api in APIS.items() if key not in keys]
    if missing:
        named = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise HandlersMissing(
            f"the embedded broker lacks the modules of {len(missing)} of its {len(APIS)} APIs ({named}): a frozen program "
            "has to include all modules of asyncgroup.broker.handlers, as PyInstaller does by asyncgroup's hook"
        )


def version_ranges() -> list[m.ApiVersionsResponse.ApiVersion]:
    """Return the version ranges that ApiVersions advertises, ordered by API key.

    Kafka advertises Produce from version 0, although it serves 3 and up: otherwise older librdkafka versions turn
    compression off (KAFKA-18659).
    """
    return [
        m.ApiVersionsResponse.ApiVersion(key, 0 if key == _PRODUCE else low, high)
        for key, (low, high) in ((key, HANDLERS[key].versions) for key in sorted(HANDLERS))
    ]
