"""AttachHistory: when a producer or consumer was registered at its broker and when it lost it, for health, hooks and the log.

The log has one line for a loss, or for a first attempt that fails, and one when the broker is found again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from asyncgroup.escaping import escaping_logger
from asyncgroup.hooks import AttachRole, Hooks
from asyncgroup.log_events import log_fields
from asyncgroup.model import TopicPartition
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = ["AttachHistory", "AttachReports", "attach_reports"]

_log = escaping_logger("asyncgroup.pulsar")

KEPT_LOSSES: Final = 5
"""Losses whose times are kept."""


class AttachReports:
    """The events of one producer or consumer for hooks."""

    def __init__(self, hooks: Hooks, role: AttachRole, topic: TopicName) -> None:
        self._hooks = hooks
        self._role = role
        self._tp = str(topic.whole), topic.partition

    def __repr__(self) -> str:
        return f"<AttachReports of a {self._role} of {self._tp}>"

    def attached(self, seconds: float) -> None:
        """The broker has registered it, after this time without a broker."""
        self._hooks.emit("on_attached", self._role, *self._tp, seconds)

    def detached(self, error: Exception) -> None:
        """The registration has ended, or an attempt has failed."""
        self._hooks.emit("on_detached", self._role, *self._tp, error)


def attach_reports(hooks: Hooks, role: AttachRole, topic: TopicName) -> AttachReports | None:
    """Return the reports for hooks; None without listeners."""
    listening = hooks.with_listener("on_attached", "on_detached")
    return None if listening is None else AttachReports(listening, role, topic)


class AttachHistory:
    """What a reconnector has seen: one success or failure after the other. Times are of the running loop.

    `tp` and `group`, a consumer's subscription, are fields of its log lines.
    """

    def __init__(
        self,
        name: str,
        tp: TopicPartition | None = None,
        group: str | None = None,
        reports: AttachReports | None = None,
    ) -> None:
        self._name = name
        self._tp = tp
        self._group = group
        self._reports = reports
        self._loop = asyncio.get_running_loop()
        self.detached_since: float | None = None
        """When the first attempt began, or the broker was lost; None while it is attached."""
        self.was_attached = False
        """Whether an attempt has succeeded."""
        self.error: Exception | None = None
        """The last failure since it was attached."""
        self.last_loss: Exception | None = None
        """Why the last registration has ended."""
        self.losses: deque[float] = deque(maxlen=KEPT_LOSSES)
        """When the last registrations have ended."""
        self.is_moving = False
        """Whether the consumer seeks: then its broker closes it, which is no loss."""
        self._is_logged = False  # a line says that it has no broker

    def __repr__(self) -> str:
        return f"<AttachHistory: detached since {self.detached_since}, {len(self.losses)} losses>"

    def started(self) -> None:
        """The first attempt begins."""
        self.detached_since = self._loop.time()

    def attached(self) -> None:
        """The broker has registered it."""
        now = self._loop.time()
        seconds = 0.0 if self.detached_since is None else now - self.detached_since
        self.detached_since = self.error = None
        self.was_attached = True
        if self._is_logged:
            self._is_logged = False
            fields = log_fields("attached", group=self._group, tp=self._tp)
            _log.info("%s: registered at its broker after %.1f s", self._name, seconds, extra=fields)
        if self._reports is not None:
            self._reports.attached(seconds)

    def detached(self, error: Exception, *, is_final: bool = False) -> None:
        """The registration has ended, or an attempt has failed; after the final one the caller gets the error."""
        self.error = error
        if self.detached_since is None:
            self.detached_since = now = self._loop.time()
            if not self.is_moving:
                self.losses.append(now)
                self.last_loss = error
        if not (is_final or self.is_moving):
            self._log_failure(error)
        if self._reports is not None:
            self._reports.detached(error)

    def _log_failure(self, error: Exception) -> None:
        """Log the first failure as a warning; those of further attempts are for debugging."""
        text = str(error)
        if not text.startswith(self._name):
            text = f"{self._name}: {text}"
        if self._is_logged:
            _log.debug("%s", text)
            return
        self._is_logged = True
        fields = log_fields("detached", group=self._group, tp=self._tp, error=error)
        _log.warning("%s; it connects again", text, extra=fields)
