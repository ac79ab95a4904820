"""PartitionFetcher: what the state of a partition calls of the object that fetches it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

__all__ = ["NOT_FETCHED", "PartitionFetcher"]


class Reported(Protocol):
    """The state of a partition, with the readers of its errors."""

    def report(self, error: Exception, /) -> bool:
        """Pass an error that the client recovers from by itself to the readers of `errors()`."""


P_contra = TypeVar("P_contra", bound=Reported, contravariant=True)


class PartitionFetcher(Protocol[P_contra]):
    """Fetches partitions. Its methods are plain steps without waiting."""

    on_records: Callable[[], object]
    """Called when records were added to a buffer."""

    def on_change(self, partition: P_contra, /) -> None:
        """The next plan has to look at the partition again."""

    def wake(self, partition: P_contra, /) -> None:
        """As `on_change`, and a plan is made in the next turn of the event loop."""

    def look_up_seek(self, partition: P_contra, /) -> None:
        """Look up the offset of the partition's `seek_target`, then call its `seek_to`."""

    def on_handled_error(self, partition: P_contra, error: Exception, /) -> None:
        """Report an error that the client recovers from by itself."""


class _NotFetched:
    """The fetcher of a partition that is not fetched, or no longer."""

    def __init__(self) -> None:
        self.on_records: Callable[[], object] = lambda: None

    def on_change(self, partition: Reported, /) -> None:
        """Do nothing."""

    def wake(self, partition: Reported, /) -> None:
        """Do nothing."""

    def look_up_seek(self, partition: Reported, /) -> None:
        """Do nothing."""

    def on_handled_error(self, partition: Reported, error: Exception, /) -> None:
        """Report it to the readers of the partition's errors only."""
        partition.report(error)


NOT_FETCHED: Final = _NotFetched()
"""The fetcher of a partition before it is given to one, and after its end."""
