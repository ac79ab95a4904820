"""CPU time, wake-ups and threads of group members that have nothing to do, with and without the heartbeat thread."""

from benchmarks.idle.run import main

__all__ = ["main"]
