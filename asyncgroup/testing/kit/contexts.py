"""Adapt pytest's items and sessions to `TestContext`, and report usage errors; used by the plugin and its fixtures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

__all__ = ["ItemContext", "SessionContext", "server_of", "without_traceback"]

_failed = pytest.StashKey[bool]()
_reports = pytest.StashKey[dict[str, Callable[[], str]]]()
_unknown_topic = pytest.StashKey[tuple[str, str]]()

_NO_PARTITIONS = {"kafka": 1, "pulsar": 0}
"""What a topic has that is added to those of a marker."""


def server_of(fixture: str | None) -> str:
    """Return the fixture with a server in a thread, to use in place of an async one."""
    return "pulsar_server" if "pulsar" in (fixture or "") else "kafka_server"


class ItemContext:
    """A pytest item as `asyncgroup.testing.kit.running.TestContext`, with the options of one marker.

    Its state is kept in the item's stash; a test may have fixtures of several markers.
    """

    def __init__(self, item: pytest.Item, marker: str = "kafka") -> None:
        self._item = item
        self._marker = marker

    def __repr__(self) -> str:
        return f"<ItemContext {self._item.nodeid}>"

    def options(self) -> Mapping[str, Any]:
        """Return the arguments of all its markers; closer markers override those of the class or module."""
        options: dict[str, Any] = {}
        for marker in self._item.iter_markers(self._marker):
            if marker.args:
                pytest.fail(
                    f"@pytest.mark.{self._marker} takes keywords only, not {marker.args!r}", pytrace=False
                )
            options = {**marker.kwargs, **options}
        return options

    def set_outcome(self, *, failed: bool) -> None:
        """Record whether the test function has failed; called when it has ended, before its fixtures are torn down."""
        self._item.stash[_failed] = failed

    def failed(self) -> bool:
        """Return whether the test function has failed, was skipped while running, or has not ended."""
        return self._item.stash.get(_failed, True)

    def set_report(self, report: Callable[[], str]) -> None:
        """Set the function that describes the cluster if the test fails."""
        self._item.stash.setdefault(_reports, {})[self._marker] = report

    @property
    def reports(self) -> Mapping[str, Callable[[], str]]:
        """The functions that describe the clusters if the test fails, by marker; empty if it has no cluster."""
        return self._item.stash.get(_reports, {})

    def clear(self) -> None:
        """Remove the state from the item: pytest keeps all items until it exits, and they would keep their clusters."""
        stash = self._item.stash
        if _failed in stash:
            del stash[_failed]
        if _reports in stash:
            del stash[_reports]
        if _unknown_topic in stash:
            del stash[_unknown_topic]

    # -- topics that do not exist --------------------------------------------------------------------------------

    def on_unknown_topic(self, topic: str) -> None:
        """Fail the test: at once if it is a task of this event loop, which is cancelled; otherwise when it ends."""
        if _failed in self._item.stash or _unknown_topic in self._item.stash:
            return  # the test function has ended, or is cancelled already
        import asyncio

        self._item.stash[_unknown_topic] = (self._marker, topic)
        code = getattr(inspect.unwrap(getattr(self._item, "obj", lambda: None)), "__code__", None)
        for task in asyncio.all_tasks():
            if getattr(task.get_coro(), "cr_code", None) is code:
                task.cancel(f"topic {topic!r} does not exist")

    @property
    def unknown_topic_message(self) -> str | None:
        """The error message for the first unknown topic that a client requested; None if there was none."""
        found = self._item.stash.get(_unknown_topic, None)
        if found is None:
            return None
        marker, topic = found
        given = ItemContext(self._item, marker).options().get("topics")
        if isinstance(given, Mapping):
            topics: object = {**given, topic: _NO_PARTITIONS[marker]}
        else:
            known = [given] if isinstance(given, str) else list(given or ())
            topics = [*known, topic] if known else topic
        return (
            f"a client requests topic {topic!r}, which does not exist. If the name is right, create it: "
            f"@pytest.mark.{marker}(topics={topics!r}). With auto_create_topics=True the broker creates topics; with "
            "unknown_topics=True a test may request topics that do not exist"
        )


class SessionContext:
    """A pytest session as `asyncgroup.testing.kit.running.TestContext`, for a cluster that its tests share."""

    def __init__(
        self, session: pytest.Session, options: Mapping[str, Any] | None = None, marker: str = "kafka"
    ) -> None:
        self._session = session
        self._marker = marker
        self._options = {"unknown_topics": True, **(options or {})}

    def options(self) -> Mapping[str, Any]:
        """Return the options. `unknown_topics` is True by default: tests create their topics while the cluster runs."""
        return self._options

    def failed(self) -> bool:
        """Return whether any test has failed; unused faults are not reported then."""
        return self._session.testsfailed > 0

    def set_report(self, report: Callable[[], str]) -> None:
        """Set the function that describes the cluster if a test fails."""
        self._session.stash.setdefault(_reports, {})[self._marker] = report

    def on_unknown_topic(self, topic: str) -> None:
        """Do nothing: the client may belong to any of the tests."""

    @property
    def reports(self) -> Mapping[str, Callable[[], str]]:
        """The functions that describe the clusters if a test fails, by marker; empty if there is no cluster."""
        return self._session.stash.get(_reports, {})


@contextmanager
def without_traceback() -> Iterator[None]:
    """Report usage errors without a traceback: their messages say what to change."""
    from asyncgroup.broker import Refused, UnusedFaults
    from asyncgroup.errors import ConfigError, UsageError
    from asyncgroup.pulsar_broker.errors import ServerFailure

    try:
        yield
    except (ConfigError, Refused, ServerFailure, UnusedFaults, UsageError) as error:
        raise pytest.fail.Exception(f"{type(error).__name__}: {error}", pytrace=False) from None
