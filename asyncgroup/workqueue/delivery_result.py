"""DeliveryResult: what the calls of a delivery return, and `WorkQueue.seek`; AckOutcome: the value of most of them.

The calls act at once, so that a forgotten `await` loses nothing.

A coroutine does nothing before it is awaited, and Python warns of one that never is. A DeliveryResult is only waited for. It has a
coroutine's methods, as asyncio makes tasks of nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from enum import Enum
from typing import Any, Generic, NoReturn, TypeVar

__all__ = ["AckOutcome", "DeliveryResult", "Known", "Outstanding"]

_T_co = TypeVar("_T_co", covariant=True)


class DeliveryResult(Coroutine[Any, Any, _T_co]):
    """The result of a call that has acted: `await` returns it."""

    __slots__ = ()


class Known(DeliveryResult[_T_co]):
    """A result that is there: `await` returns it at once, each time. One object serves all calls with this result."""

    __slots__ = ("_value",)

    def __init__(self, value: _T_co) -> None:
        self._value = value

    def __repr__(self) -> str:
        return f"<DeliveryResult: {self._value}>"

    def __await__(self) -> Generator[Any, Any, _T_co]:
        return self._value
        yield  # type: ignore[unreachable]  # makes it a generator, the fastest way to end an `await` at once

    def send(self, _: object) -> NoReturn:
        """End a task with the result."""
        raise StopIteration(self._value)

    def throw(self, *error: Any) -> NoReturn:
        """End a task with an error, such as its cancellation."""
        raise error[0]

    def close(self) -> None:
        """Nothing is open."""


class Outstanding(DeliveryResult[_T_co], Generic[_T_co]):
    """A result that has to be waited for; `wait` returns the coroutine of one wait."""

    __slots__ = ("_running", "_wait")

    def __init__(self, wait: Callable[[], Coroutine[Any, Any, _T_co]]) -> None:
        self._wait = wait
        self._running: Coroutine[Any, Any, _T_co] | None = None

    def __repr__(self) -> str:
        return (
            "<DeliveryResult: not waited for>"
            if self._running is None
            else "<DeliveryResult: being waited for>"
        )

    def __await__(self) -> Generator[Any, Any, _T_co]:
        return self._wait().__await__()

    @property
    def _of_task(self) -> Coroutine[Any, Any, _T_co]:
        if self._running is None:
            self._running = self._wait()
        return self._running

    def send(self, value: Any) -> Any:
        """Run the wait of a task until it suspends."""
        return self._of_task.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error in the wait of a task, such as its cancellation."""
        return self._of_task.throw(*error)

    def close(self) -> None:
        """End the wait of a task, if one has begun."""
        if self._running is not None:
            self._running.close()


class AckOutcome(Enum):
    """The result of an acknowledgement; true if the record is acknowledged."""

    ACKED = "acknowledged: the next grouped commit contains it"
    COMMITTED = "acknowledged and committed"
    EXPIRED = (
        "too late: the ack timeout has passed, or an earlier record was nacked in order: delivered again"
    )
    LOST = "too late: the partition was revoked, its log changed, or the queue was closed; the record is delivered again"

    def __bool__(self) -> bool:
        return self in (AckOutcome.ACKED, AckOutcome.COMMITTED)
