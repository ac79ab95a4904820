"""Retries of the driver's broker requests, so that transient errors do not fail a query."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias, TypeVar

from asyncgroup.cluster.requests.actions import RequestAction
from asyncgroup.cluster.requests.list_offsets import is_retriable_error
from asyncgroup.cluster.requests.repeat import retry_errors
from asyncgroup.errors import (
    AsyncGroupError,
    AuthenticationError,
    BrokerError,
    ConfigError,
    ErrorCode,
    ProtocolError,
    TransportError,
)
from asyncgroup.net.backoff import RetryBackoff, RetryLoop
from asyncgroup.spark.source.errors import SourceError
from asyncgroup.spark.source.options.settings import ReadSettings

__all__ = ["RetryPolicy", "offset_attempts"]

_log = logging.getLogger("asyncgroup.spark")

T = TypeVar("T")

MayPass: TypeAlias = Callable[[AsyncGroupError], bool]
"""Returns whether the same request may succeed after this error."""

WARNING_INTERVAL: Final = 10.0
"""Seconds between warnings about an operation that keeps failing."""

AUTHORIZATION_ERRORS: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""Error codes for which no further attempt is made."""


def offset_attempts(settings: ReadSettings) -> RetryLoop:
    """Return the state of a new loop of `offset_retries` attempts, `offset_retry_interval` seconds apart, as in Spark."""
    interval = settings.offset_retry_interval
    return RetryLoop(RetryBackoff(interval, interval, None), retries=settings.offset_retries - 1)


class RetryPolicy:
    """Retries the broker requests of one query. `what` names the operation, as the beginning of a sentence."""

    def __init__(self, settings: ReadSettings, rng: random.Random | None = None) -> None:
        self._settings = settings
        self._random = rng or random.Random()
        self._warned: dict[str, float] = {}

    async def retry_attempts(
        self, what: str, ask: Callable[[bool], Awaitable[T]], may_pass: MayPass | None = None
    ) -> T:
        """Await `ask(retrying)` with `retry_until_timeout`, up to `settings.offset_retries` times, also after final errors.

        `retrying` is true after a failure: cached metadata may be wrong then. There is no further attempt after errors of
        authorization, authentication, configuration or protocol.
        """
        retrying = False

        async def once() -> T:
            nonlocal retrying
            before, retrying = retrying, True
            return await ask(before)

        def report(error: AsyncGroupError) -> None:
            left = self._settings.offset_retries - retry.tries
            _log.warning("%s failed, %d attempts left: %s", what, left, error)

        retry = offset_attempts(self._settings)
        return await retry_errors(
            lambda: self.retry_until_timeout(what, once, may_pass),
            retry,
            decide=lambda error: RequestAction.FAIL if _is_final(error) else RequestAction.RETRY,
            on_error=report,
        )

    async def retry_until_timeout(
        self,
        what: str,
        ask: Callable[[], Awaitable[T]],
        may_pass: MayPass | None = None,
        *,
        is_cut: bool = False,
    ) -> T:
        """Await `ask()` repeatedly while it raises errors that `may_pass`, for at most `settings.api_timeout` seconds.

        By default these are the retriable ones. The last attempt may take longer, unless it `is_cut`.
        Raises the last error; ASYNCGROUP_BROKERS_UNREACHABLE if no broker has answered.
        """
        backoff = RetryBackoff.configured(self._settings.config, self._random)
        retry = RetryLoop(backoff, timeout=self._settings.api_timeout)
        passes = may_pass or is_retriable_error

        def report(error: AsyncGroupError) -> None:
            # no warning about the first failure, which is often a connection that was idle for too long
            if retry.failures > 1:
                self.warn(what, f"is retried for up to {retry.left:.0f} s: {error}")

        try:
            return await retry_errors(
                ask,
                retry,
                decide=lambda error: RequestAction.RETRY if passes(error) else RequestAction.FAIL,
                is_cut=is_cut,
                on_error=report,
            )
        except TransportError as error:
            if not passes(error):
                raise
            raise self._unreachable(what, error) from error

    def _unreachable(self, what: str, error: TransportError) -> SourceError:
        servers, limit = self._settings.bootstrap_servers, self._settings.api_timeout
        reason = f"{error} (within {limit:g} s: kafka.default.api.timeout.ms)"
        return SourceError("ASYNCGROUP_BROKERS_UNREACHABLE", what=what, servers=servers, reason=reason)

    def warn(self, what: str, text: str) -> None:
        """Log a warning, at most one per `WARNING_INTERVAL` for the same operation."""
        now = asyncio.get_running_loop().time()
        if now - self._warned.get(what, float("-inf")) >= WARNING_INTERVAL:
            self._warned[what] = now
            _log.warning("%s %s", what, text)


def _is_final(error: AsyncGroupError) -> bool:
    """Return whether another attempt would fail in the same way: authorization, authentication, protocol errors."""
    if isinstance(error, BrokerError):
        return error.code in AUTHORIZATION_ERRORS
    return isinstance(error, (AuthenticationError, ConfigError, ProtocolError))
