"""Files that a record, a rebalance or a request runs through, and how often control comes back to one of them."""

from benchmarks.trips.run import main

__all__ = ["main"]
