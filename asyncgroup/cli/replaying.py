"""What `dlq replay` does on Kafka and on Pulsar in the same way: checks of its options, the question, and the report."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from asyncgroup.cli.lines import LineReader
from asyncgroup.counting import counted
from asyncgroup.errors import AsyncGroupError

__all__ = [
    "ReplayProgress",
    "ReplayStep",
    "ReplayStopped",
    "check_replay_options",
    "exit_code_before_writing",
    "gone_since_the_plan",
    "not_written",
]


class ReplayStopped(AsyncGroupError):
    """A record could not be written, or the position could not be committed; the records before it are done."""

    _has_foreign_text = True


class ReplayStep(NamedTuple):
    """A line of the plan."""

    place: str
    """Where the dead letter is."""
    topic: str
    """The topic to write to."""
    target: str
    """The topic with its partition if that is known."""


def check_replay_options(options: argparse.Namespace, *, to_itself: bool) -> None:
    """Exit with a usage error for options that exclude each other; `to_itself`: --to is the dead letter topic."""
    if options.group is not None and (options.offsets or options.match is not None):
        options.usage.error(
            "--group continues after the last record that was replayed: it excludes --offsets and --match, "
            "which skip records"
        )
    if to_itself:
        options.usage.error(f"--to {options.to} is the dead letter topic itself")
    has_terminal = sys.stdin is not None and sys.stdin.isatty()
    if not (options.yes or options.dry_run or has_terminal):
        options.usage.error(
            "--yes is required if standard input is not a terminal (--dry-run writes nothing)"
        )


async def exit_code_before_writing(options: argparse.Namespace, steps: Sequence[ReplayStep]) -> int | None:
    """Print the plan of a dry run, or ask; return the exit code if nothing is to be written, else None."""
    if not steps:
        print(f"{options.topic}: no dead letters to replay", file=sys.stderr)
        return 0
    if options.dry_run:
        for step in steps:
            print(f"{step.place} -> {step.target}")
        print(f"would replay {_by_topic(steps)}", file=sys.stderr)
        return 0
    if not options.yes and not await _is_confirmed(f"Replay {_by_topic(steps)}?"):
        print("nothing was written", file=sys.stderr)
        return 1
    return None


async def _is_confirmed(question: str) -> bool:
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    async for lines in LineReader(None):
        return lines[0].strip().lower() in (b"y", b"yes")
    return False


def _by_topic(steps: Sequence[ReplayStep]) -> str:
    topics = Counter(step.topic for step in steps)
    each = ", ".join(f"{count:,} to {topic}" for topic, count in sorted(topics.items()))
    return f"{counted(len(steps), 'record')}: {each}"


class ReplayProgress:
    """Counts the records that are written, and keeps the place of the last one."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.written = 0
        self._last: str | None = None

    def done(self, place: str, written_to: str) -> None:
        """Count a record, and print where it is. Raises BrokenPipeError."""
        self.written += 1
        self._last = place
        print(f"{place} -> {written_to}", flush=True)

    def report(self) -> None:
        """Print how many records were written, and the last one; ignore a closed standard error."""
        count = (
            counted(self.total, "record")
            if self.written == self.total
            else f"{self.written:,} of {counted(self.total, 'record')}"
        )
        last = "" if self._last is None else f", the last one {self._last}"
        with contextlib.suppress(OSError):
            print(f"{count} replayed{last}", file=sys.stderr, flush=True)


def not_written(place: str, target: str, error: AsyncGroupError) -> ReplayStopped:
    """Return the error for a record whose copy the broker has not acknowledged."""
    if not error.may_be_written:
        return ReplayStopped(f"{place} was not written to {target}: {error}")
    hint = "look for it there before you replay it again"
    stopped = ReplayStopped(f"{place} was perhaps written to {target}: {error}; {hint}")
    stopped.may_be_written = True
    return stopped


def gone_since_the_plan(topic: str, count: int) -> ReplayStopped:
    """Return the error for records that were deleted between the two passes."""
    return ReplayStopped(f"{topic}: {counted(count, 'record is', 'records are')} no longer in the log")
