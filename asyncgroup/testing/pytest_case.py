"""A test of pytest as the kit sees it, and how mistakes of tests are told: what the plugin shares with its fixtures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

__all__ = ["ItemCase", "told_plainly"]

_failed = pytest.StashKey[bool]()
_story = pytest.StashKey[Callable[[], str]]()


class ItemCase:
    """A pytest item as `asyncgroup.testing.kit.Case`; what is known of it stays with the item until `forget`."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item

    def __repr__(self) -> str:
        return f"<ItemCase {self._item.nodeid}>"

    def options(self) -> Mapping[str, Any]:
        """The arguments of all `kafka` markers; those nearer to the test win."""
        options: dict[str, Any] = {}
        for marker in self._item.iter_markers("kafka"):
            if marker.args:
                pytest.fail(f"@pytest.mark.kafka takes keywords only, not {marker.args!r}", pytrace=False)
            options = {**marker.kwargs, **options}
        return options

    def ended(self, *, failed: bool) -> None:
        """The test itself, without its fixtures, is over."""
        self._item.stash[_failed] = failed

    def failed(self) -> bool:
        """Whether the test itself has failed or was skipped half-way."""
        return self._item.stash.get(_failed, True)

    def tells(self, story: Callable[[], str]) -> None:
        """What to show if the test fails."""
        self._item.stash[_story] = story

    @property
    def story(self) -> Callable[[], str] | None:
        """What to show if the test fails; None if it has no cluster."""
        return self._item.stash.get(_story, None)

    def forget(self) -> None:
        """Let go of all: pytest keeps its items to the end, and with a story they would keep their clusters."""
        stash = self._item.stash
        if _failed in stash:
            del stash[_failed]
        if _story in stash:
            del stash[_story]


@contextmanager
def told_plainly() -> Iterator[None]:
    """Errors that say by themselves what the test did wrong are told without a traceback."""
    from asyncgroup.broker import Refused, UnusedFaults
    from asyncgroup.errors import ConfigError, UsageError

    try:
        yield
    except (ConfigError, Refused, UnusedFaults, UsageError) as error:
        raise pytest.fail.Exception(f"{type(error).__name__}: {error}", pytrace=False) from None
