"""AdminResults: a value or an error for each name that a call of Admin was about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TypeVar

from asyncgroup.cluster.requests.results import Results
from asyncgroup.errors import AsyncGroupError

__all__ = ["AdminResults"]

K = TypeVar("K")
V = TypeVar("V")


class AdminResults(Mapping[K, "V | AsyncGroupError"]):
    """For each name either its value or its error, as in franz-go's kadm: one name that fails does not affect the others.

    results = await admin.delete_topics(["a", "b"])
    results.raise_first()                       # the values, or the first error
    for name, error in results.errors.items(): ...
    """

    __slots__ = ("_results",)

    def __init__(self, results: Results[K, V]) -> None:
        self._results = results

    def __repr__(self) -> str:
        return f"<AdminResults: {self._results.values}, errors {self._results.errors}>"

    def __getitem__(self, name: K) -> V | AsyncGroupError:
        found = self._results
        return found.errors[name] if name in found.errors else found.values[name]

    def __iter__(self) -> Iterator[K]:
        yield from self._results.values
        yield from self._results.errors

    def __len__(self) -> int:
        return len(self._results.values) + len(self._results.errors)

    @property
    def values_by_name(self) -> Mapping[K, V]:
        """The values of those names that have one; it cannot be changed."""
        return MappingProxyType(self._results.values)

    @property
    def errors(self) -> Mapping[K, AsyncGroupError]:
        """The errors of the others; it cannot be changed."""
        return MappingProxyType(self._results.errors)

    def raise_first(self) -> Mapping[K, V]:
        """Return the values of all names. Raises the first error if there is one."""
        return MappingProxyType(self._results.require())
