"""Requests whose response, or a part of it, was lost: a refusal of the repetition may mean that the lost one was executed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Generic, TypeVar

from asyncgroup.cluster.requests.results import Results
from asyncgroup.errors import BrokerError, ConnectError, ErrorCode, TransportError

__all__ = ["Unanswered"]

K = TypeVar("K", bound=Hashable)


class Unanswered(Generic[K]):
    """Keys in requests whose response was lost, or lacks them; `code` for one of them later means that the lost request was executed."""

    def __init__(self, code: ErrorCode) -> None:
        self._code = code
        self._keys: set[K] = set()

    async def track(
        self,
        keys: Iterable[K],
        send: Callable[[], Awaitable[Results[K, None]]],
        is_done: Callable[[K], Awaitable[bool]] | None = None,
    ) -> Results[K, None]:
        """Return the results of `send()`, in which a refusal that the lost request explains is a success.

        `is_done(key)` looks whether it really explains it, where the code alone does not say so.
        """
        try:
            results = await send()
        except ConnectError:
            raise  # nothing was sent
        except TransportError:
            self._keys.update(keys)
            raise
        # a response that lacks a key does not say that nothing was done for it
        self._keys.update(key for key in keys if key not in results.values and key not in results.errors)
        for key, error in list(results.errors.items()):
            code = error.code if isinstance(error, BrokerError) else None
            if code == ErrorCode.REQUEST_TIMED_OUT:  # the broker goes on
                self._keys.add(key)
            elif code == self._code and key in self._keys and (is_done is None or await is_done(key)):
                del results.errors[key]
                results.values[key] = None
        return results
