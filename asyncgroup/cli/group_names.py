"""The groups that a command is about: those that are named, or all that can be described."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from asyncgroup.admin import Admin
    from asyncgroup.errors import AsyncGroupError

__all__ = ["chosen_groups"]

DESCRIBED_TYPES: Final = ("", "classic", "consumer")
"""The types of groups with members that read topics; before Kafka 3.8 a broker names none."""


async def chosen_groups(
    admin: Admin, given: Iterable[str], on_errors: Callable[[Mapping[int, AsyncGroupError]], object]
) -> list[str]:
    """Return the given groups, each once, or all classic and consumer groups; `on_errors` gets the errors of silent nodes."""
    if names := list(dict.fromkeys(given)):
        return names
    listed = await admin.list_groups()
    on_errors(listed.errors)
    return [group.group_id for group in listed.groups if group.group_type in DESCRIBED_TYPES]
