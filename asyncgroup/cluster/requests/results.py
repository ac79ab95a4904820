"""Results of requests for several keys: a value or an error for each key, merged over nodes and attempts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from asyncgroup.cluster.requests.actions import ERRORS, ErrorTable, RequestAction, action_of
from asyncgroup.errors import AsyncGroupError, ProtocolError

__all__ = ["IncompleteResponse", "Progress", "Results", "raise_first"]

K = TypeVar("K")
V = TypeVar("V")


class IncompleteResponse(ProtocolError):
    """A response lacks some of the requested keys. The next one may have them, as `AdminApiDriver` in Java assumes."""

    retriable = True


class Results(Generic[K, V]):
    """For each key either its value or its error (as in franz-go's kadm): one key that fails does not affect the others."""

    __slots__ = ("errors", "values")

    def __init__(
        self, values: dict[K, V] | None = None, errors: dict[K, AsyncGroupError] | None = None
    ) -> None:
        self.values: dict[K, V] = {} if values is None else values
        self.errors: dict[K, AsyncGroupError] = {} if errors is None else errors

    def __repr__(self) -> str:
        return f"Results({self.values}, {self.errors})"

    @classmethod
    def failed(cls, keys: Iterable[K], error: AsyncGroupError) -> Results[K, V]:
        """Return results in which all keys have the same error."""
        return cls(errors=dict.fromkeys(keys, error))

    def require(self) -> dict[K, V]:
        """Return all values. Raises the first error if there is one."""
        raise_first(self.errors)
        return self.values

    def in_order(self, keys: Iterable[K]) -> Results[K, V]:
        """Return the results of these keys in this order."""
        wanted = list(keys)
        values = {key: self.values[key] for key in wanted if key in self.values}
        return Results(values, {key: self.errors[key] for key in wanted if key in self.errors})

    def completed(self, keys: Sequence[K], what: str) -> Results[K, V]:
        """Return the results of these keys only; one that is missing has IncompleteResponse, `what` names the response."""
        known = self.values.keys() | self.errors.keys()
        missing = [key for key in keys if key not in known]
        errors = {key: self.errors[key] for key in keys if key in self.errors}
        if missing:
            names = ", ".join(map(_name, missing))
            errors |= dict.fromkeys(missing, IncompleteResponse(f"{what} has no entry for {names}"))
        values = {key: self.values[key] for key in keys if key in self.values and key not in errors}
        return Results(values, errors)


def raise_first(errors: Mapping[Any, AsyncGroupError]) -> None:
    """Raise the first error if there is one."""
    for error in errors.values():
        raise error


class Progress(Generic[K, V]):
    """What the attempts of one request have brought so far: synchronous, the requests are sent elsewhere.

    With `fails_fast` the first final error ends the request, for a caller that needs the values of all keys.
    """

    def __init__(self, keys: Iterable[K], table: ErrorTable = ERRORS, *, fails_fast: bool = False) -> None:
        self._table = table
        self._fails_fast = fails_fast
        self._keys = list(dict.fromkeys(keys))
        self._values: dict[K, V] = {}
        self._final: dict[K, AsyncGroupError] = {}
        """Errors that no other attempt changes."""
        self._last: dict[K, AsyncGroupError] = {}
        """The last error of each key that is left."""

    def __repr__(self) -> str:
        return f"<Progress: {len(self._values)} values, {len(self._final)} errors, {len(self.left)} left>"

    @property
    def left(self) -> list[K]:
        """The keys to ask for in the next attempt, in the given order."""
        return [key for key in self._keys if key not in self._values and key not in self._final]

    def last_error(self, keys: Iterable[K]) -> AsyncGroupError | None:
        """Return the last error of the first of these keys that has one."""
        return next((self._last[key] for key in keys if key in self._last), None)

    def apply(self, attempt: Results[K, V]) -> RequestAction:
        """Merge the results of an attempt; return what to do for the keys that are left: DONE or FAIL ends the request."""
        self._values |= attempt.values
        action = RequestAction.DONE
        for key, error in attempt.errors.items():
            for_key = action_of(error, self._table)
            if for_key is RequestAction.FAIL:
                self._final[key] = error
                self._last.pop(key, None)
            else:
                action = max(action, for_key)
                self._last[key] = error
        if self._final and self._fails_fast:
            return RequestAction.FAIL
        return action if self.left else RequestAction.DONE

    def results(self) -> Results[K, V]:
        """Return the values, the final errors, and the last error of each key that is left."""
        left = {key: self._last[key] for key in self.left if key in self._last}
        return Results(dict(self._values), self._final | left)


def _name(key: object) -> str:
    return repr(key) if isinstance(key, str) else str(key)
