"""How often and how long a driver's questions are tried again: a query must not end by what heals."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from asyncgroup.cluster.backoff import Backoff
from asyncgroup.consumer.list_offsets import heals
from asyncgroup.errors import (
    AsyncGroupError,
    AuthenticationError,
    BrokerError,
    ConfigError,
    ErrorCode,
    ProtocolError,
    TransportError,
)
from asyncgroup.spark.source import errors
from asyncgroup.spark.source.settings import ReadSettings

__all__ = ["API_TIMEOUT", "RetryPolicy"]

_log = logging.getLogger("asyncgroup.spark")

T = TypeVar("T")

API_TIMEOUT: Final = 60.0
"""Seconds for which one attempt goes on while nothing final is answered: Java's `default.api.timeout.ms`.

`fetchOffset.numRetries` says how many attempts there are."""

WARNING_INTERVAL: Final = 10.0
"""How often it is said that something goes on failing."""

AUTHORIZATION_ERRORS: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""Error codes that another attempt would only see again."""


class RetryPolicy:
    """Tries questions again, for one query. `what` is a question in a few words, which begin a sentence."""

    def __init__(self, settings: ReadSettings, rng: random.Random | None = None) -> None:
        self._settings = settings
        self._random = rng or random.Random()
        self._warned: dict[str, float] = {}

    async def retry_attempts(self, what: str, ask: Callable[[bool], Awaitable[T]]) -> T:
        """`ask(anew)` by `retry_until_timeout`, up to `settings.offset_retries` times, also after errors that nobody calls retriable.

        `anew` says that it has failed before, so that what was known may be wrong.
        """
        anew = False

        async def once() -> T:
            nonlocal anew
            before, anew = anew, True
            return await ask(before)

        left = self._settings.offset_retries
        while True:
            left -= 1
            try:
                return await self.retry_until_timeout(what, once)
            except AsyncGroupError as error:
                if left <= 0 or _is_final(error):
                    raise
                _log.warning("%s failed, %d more attempts: %s", what, left, error)
            await asyncio.sleep(self._settings.offset_retry_interval)

    async def retry_until_timeout(self, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        """`ask()` again and again while what it raises can heal, for at most `API_TIMEOUT`.

        Raises what it raised last; ASYNCGROUP_BROKERS_UNREACHABLE if no broker answered.
        """
        time = asyncio.get_running_loop().time
        deadline = time() + API_TIMEOUT
        config = self._settings.config
        backoff = Backoff(config.retry_backoff, config.retry_backoff_max, self._random)
        while True:
            try:
                return await ask()
            except AsyncGroupError as error:
                pause = backoff.next()
                if not heals(error):
                    raise
                if time() + pause >= deadline:
                    if isinstance(error, TransportError):
                        raise errors.brokers_unreachable(
                            what, self._settings.bootstrap_servers, error
                        ) from error
                    raise
                # the first failure is often that of a connection which was idle for too long
                if backoff.failures > 1:
                    self.warn(what, f"is tried again for {deadline - time():.0f} s more: {error}")
            await asyncio.sleep(pause)

    def warn(self, what: str, text: str) -> None:
        """Say of something that goes on failing, now and then."""
        now = asyncio.get_running_loop().time()
        if now - self._warned.get(what, float("-inf")) >= WARNING_INTERVAL:
            self._warned[what] = now
            _log.warning("%s %s", what, text)


def _is_final(error: AsyncGroupError) -> bool:
    """Whether another attempt would find the same: what the broker forbids, or the client does not understand."""
    if isinstance(error, BrokerError):
        return error.code in AUTHORIZATION_ERRORS
    return isinstance(error, (AuthenticationError, ConfigError, ProtocolError))
