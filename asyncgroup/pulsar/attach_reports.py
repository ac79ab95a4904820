"""AttachReports: what a reconnector tells hooks of the producer or consumer that it keeps at a broker."""

from __future__ import annotations

import asyncio

from asyncgroup.hooks import AttachRole, Hooks
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = ["AttachReports", "attach_reports"]


class AttachReports:
    """Those of one producer or consumer: one event for each success, and one for each failure."""

    def __init__(self, hooks: Hooks, role: AttachRole, topic: TopicName) -> None:
        self._hooks = hooks
        self._role = role
        self._tp = str(topic.whole), topic.partition
        self._loop = asyncio.get_running_loop()
        self._since: float | None = (
            None  # loop time of the first attempt, or of the loss; None while it is attached
        )

    def __repr__(self) -> str:
        return f"<AttachReports of a {self._role} of {self._tp}>"

    def started(self) -> None:
        """The first attempt begins."""
        self._since = self._loop.time()

    def attached(self) -> None:
        """The broker has registered it."""
        now = self._loop.time()
        seconds, self._since = now - (now if self._since is None else self._since), None
        self._hooks.emit("on_attached", self._role, *self._tp, seconds)

    def detached(self, error: Exception) -> None:
        """The registration has ended, or an attempt has failed."""
        if self._since is None:
            self._since = self._loop.time()
        self._hooks.emit("on_detached", self._role, *self._tp, error)


def attach_reports(hooks: Hooks, role: AttachRole, topic: TopicName) -> AttachReports | None:
    """Return what a reconnector calls; None without listeners."""
    listening = hooks.with_listener("on_attached", "on_detached")
    return None if listening is None else AttachReports(listening, role, topic)
