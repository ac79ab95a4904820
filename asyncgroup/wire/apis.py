"""The table of APIs: each with its key, name, versions and message classes."""

from __future__ import annotations

from functools import cached_property
from typing import Final

from asyncgroup.wire import messages
from asyncgroup.wire.message import Message
from asyncgroup.wire.schema import NO_VERSIONS, VersionRange, parse_head
from asyncgroup.wire.tables import TABLES

__all__ = [
    "APIS",
    "API_BY_NAME",
    "API_VERSIONS_KEY",
    "Api",
]

API_VERSIONS_KEY: Final = 18

_NEVER: Final = 1 << 15  # above every version


class Api:
    """One API: its key, Kafka's name, and its stable versions; `request` and `response` are its message classes.

    Versions from `flexible_from` on are flexible (KIP-482); if none is, `flexible_from` is above all versions.
    """

    def __init__(self, key: int, name: str, versions: VersionRange, flexible_from: int) -> None:
        self.key = key
        self.name = name
        self.versions = versions
        self.flexible_from = flexible_from

    def __repr__(self) -> str:
        return f"<Api {self.name} ({self.key}), versions {self.versions}>"

    @cached_property
    def request(self) -> type[Message]:
        """The class of its requests; its module is imported on first use."""
        found: type[Message] = getattr(messages, f"{self.name}Request")
        return found

    @cached_property
    def response(self) -> type[Message]:
        """The class of its responses."""
        found: type[Message] = getattr(messages, f"{self.name}Response")
        return found


def _apis() -> dict[int, Api]:
    found = {}
    for name, table in TABLES.items():
        if name.endswith("Request"):
            head = parse_head(table)
            flexible_from = _NEVER if head.flexible == NO_VERSIONS else head.flexible.low
            api = Api(head.api_key, name.removesuffix("Request"), head.stable_versions, flexible_from)
            found[head.api_key] = api
    return found


APIS: Final[dict[int, Api]] = _apis()
"""All known APIs by key."""

API_BY_NAME: Final[dict[str, Api]] = {api.name: api for api in APIS.values()}
"""All known APIs by Kafka's name, e.g. `Fetch`."""
