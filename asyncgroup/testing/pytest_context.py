"""A test of pytest as the kit sees it, and how mistakes of tests are told: what the plugin shares with its fixtures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

__all__ = ["ItemContext", "SessionContext", "without_traceback"]

_failed = pytest.StashKey[bool]()
_report = pytest.StashKey[Callable[[], str]]()
_unknown_topic = pytest.StashKey[str]()


class ItemContext:
    """A pytest item as `asyncgroup.testing.pytest_support.TestContext`; what is known of it stays with the item until `clear`."""

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

    def set_outcome(self, *, failed: bool) -> None:
        """The test itself, without its fixtures, is over."""
        self._item.stash[_failed] = failed

    def failed(self) -> bool:
        """Whether the test itself has failed or was skipped half-way."""
        return self._item.stash.get(_failed, True)

    def set_report(self, report: Callable[[], str]) -> None:
        """What to show if the test fails."""
        self._item.stash[_report] = report

    @property
    def report(self) -> Callable[[], str] | None:
        """What to show if the test fails; None if it has no cluster."""
        return self._item.stash.get(_report, None)

    def clear(self) -> None:
        """Let go of all: pytest keeps its items to the end, and with a story they would keep their clusters."""
        stash = self._item.stash
        if _failed in stash:
            del stash[_failed]
        if _report in stash:
            del stash[_report]
        if _unknown_topic in stash:
            del stash[_unknown_topic]

    # -- topics that do not exist --------------------------------------------------------------------------------

    def on_unknown_topic(self, topic: str) -> None:
        """Fail the test: it is cancelled if it runs as a task of this event loop, otherwise it fails when it ends."""
        if _failed in self._item.stash or _unknown_topic in self._item.stash:
            return  # the test itself is over, or it is cancelled already
        import asyncio

        self._item.stash[_unknown_topic] = topic
        code = getattr(inspect.unwrap(getattr(self._item, "obj", lambda: None)), "__code__", None)
        for task in asyncio.all_tasks():
            if getattr(task.get_coro(), "cr_code", None) is code:
                task.cancel(f"topic {topic!r} does not exist")

    @property
    def unknown_topic_message(self) -> str | None:
        """What to say of the first topic that was asked for and did not exist; None if there was none."""
        topic = self._item.stash.get(_unknown_topic, None)
        if topic is None:
            return None
        given = self.options().get("topics")
        if isinstance(given, Mapping):
            wanted: object = {**given, topic: 1}
        else:
            known = [given] if isinstance(given, str) else list(given or ())
            wanted = [*known, topic] if known else topic
        return (
            f"a client asks for topic {topic!r}, which does not exist. Misspelt? Or make it: "
            f"@pytest.mark.kafka(topics={wanted!r}); with auto_create_topics=True the broker makes topics, with "
            "unknown_topics=True a test may ask for one that is not there"
        )


class SessionContext:
    """A session of pytest as `asyncgroup.testing.pytest_support.TestContext`, for a cluster that all of its tests share."""

    def __init__(self, session: pytest.Session, options: Mapping[str, Any] | None = None) -> None:
        self._session = session
        self._options = {"unknown_topics": True, **(options or {})}

    def options(self) -> Mapping[str, Any]:
        """As given; tests that share a cluster make topics while it runs, so asking for one is allowed."""
        return self._options

    def failed(self) -> bool:
        """Whether any test has failed, so that unused faults are not reported."""
        return self._session.testsfailed > 0

    def set_report(self, report: Callable[[], str]) -> None:
        """What to show of a test that fails."""
        self._session.stash[_report] = report

    def on_unknown_topic(self, topic: str) -> None:
        """Nothing: which test asks is not known."""

    @property
    def report(self) -> Callable[[], str] | None:
        """What to show of a test that fails; None if there is no cluster."""
        return self._session.stash.get(_report, None)


@contextmanager
def without_traceback() -> Iterator[None]:
    """Errors that say by themselves what the test did wrong are told without a traceback."""
    from asyncgroup.broker import Refused, UnusedFaults
    from asyncgroup.errors import ConfigError, UsageError

    try:
        yield
    except (ConfigError, Refused, UnusedFaults, UsageError) as error:
        raise pytest.fail.Exception(f"{type(error).__name__}: {error}", pytrace=False) from None
