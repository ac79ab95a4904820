"""The command `python -m tests.simulate`, or of another system: runs by seed, and mutations that must be detected."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import pytest

from tests.simulation.parallel import outcomes
from tests.simulation.report import Summary
from tests.simulation.run import Outcome
from tests.simulation.shrink import shrink
from tests.simulation.world import AnyPlan

__all__ = ["Simulation", "exit_with"]

EVERY: Final = 100
"""Runs per line of progress if the output is not a terminal."""

PlanT = TypeVar("PlanT", bound=AnyPlan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation(Generic[PlanT]):
    """The simulation of a system, as the command and tests run it."""

    module: str
    """What `python -m` runs."""
    about: str | None
    """The help of the command."""
    actions: Collection[str]
    """The kinds of actions."""
    until: str
    """What "ms to settle" measures."""
    plan_of: Callable[[int], PlanT]
    run_plan: Callable[[PlanT], Outcome]
    run_seed: Callable[[int], Outcome]
    describe: Callable[[PlanT], list[str]]
    describe_failure: Callable[[Outcome, PlanT], str]
    mutations: Collection[str]
    find_mutation: Callable[[str, Iterable[int]], Outcome | None]

    def check(self, seeds: Sequence[int], jobs: int = 1) -> Summary:
        """Run all seeds; fail the test with the shortest plan of the first one that breaks an invariant."""
        summary = Summary(self.actions, self.until)
        for outcome in outcomes(self.run_seed, seeds, jobs):
            summary.add(outcome)
            if outcome.violation is not None:
                pytest.fail(self._explain(outcome, seconds=20.0), pytrace=False)
        return summary

    def main(self, arguments: Iterable[str] | None = None) -> int:
        """Run the command; return its exit status."""
        options = self._options(None if arguments is None else list(arguments))
        if options.mutation is not None:
            names = list(self.mutations) if options.mutation == "all" else [options.mutation]
            return self._find_mutations(names, options.seeds)
        if options.story or options.requests:
            return self._tell(options.seeds.start, requests=options.requests)
        summary = Summary(self.actions, self.until)
        for outcome in outcomes(self.run_seed, options.seeds, options.jobs):
            summary.add(outcome)
            if options.json:
                print(json.dumps(outcome.as_dict), flush=True)
                continue
            if outcome.violation is not None:
                print("\n" + self._explain(outcome, seconds=60.0 * options.shrink), flush=True)
            _show_progress(summary, len(options.seeds))
        if not options.json:
            print("\n".join(["", *summary.lines()]))
        return 1 if summary.broken else 0

    def _explain(self, failed: Outcome, seconds: float) -> str:
        """Describe a failed run, after `seconds` of attempts to shorten its plan."""
        plan, outcome = shrink(self.plan_of(failed.seed), failed, self.run_plan, seconds)
        return self.describe_failure(outcome, plan)

    def _options(self, arguments: list[str] | None) -> argparse.Namespace:
        parser = argparse.ArgumentParser(
            prog=f"python -m {self.module}",
            description=self.about,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        which = parser.add_mutually_exclusive_group()
        which.add_argument("--seeds", type=_seed_range, default=range(200), metavar="FROM:TO")
        which.add_argument("--seed", type=_seed_range, dest="seeds", metavar="N")
        parser.add_argument("--jobs", type=int, default=1)
        parser.add_argument("--story", action="store_true")
        parser.add_argument("--requests", action="store_true")
        parser.add_argument("--json", action="store_true")
        parser.add_argument("--no-shrink", action="store_false", dest="shrink")
        parser.add_argument("--mutation", choices=["all", *self.mutations], metavar="NAME")
        return parser.parse_args(arguments)

    def _tell(self, seed: int, *, requests: bool) -> int:
        outcome = self.run_seed(seed)
        print("\n".join([*self.describe(self.plan_of(seed)), "", *outcome.story]))
        if requests:
            print("\n".join(["", "requests:", *outcome.requests]))
        print(
            f"digest {outcome.digest}, {outcome.virtual_seconds:.3f} s, {outcome.violation or 'no violation'}"
        )
        return 0 if outcome.violation is None else 1

    def _find_mutations(self, mutations: Iterable[str], seeds: range) -> int:
        """Print a line per mutation: the seed that detected it, and the violated invariant."""
        missed = 0
        for mutation in mutations:
            began = time.perf_counter()
            found = self.find_mutation(mutation, seeds)
            seconds = time.perf_counter() - began
            if found is None or found.violation is None:
                missed += 1
                print(f"{mutation:<52} NOT FOUND in {len(seeds)} seeds, {seconds:.0f} s", flush=True)
            else:
                print(
                    f"{mutation:<52} seed {found.seed:<4} {found.violation.name} ({seconds:.0f} s)",
                    flush=True,
                )
        return 1 if missed else 0


def _seed_range(text: str) -> range:
    """Return the seeds of `FROM:TO`, or a single one. Raises ArgumentTypeError."""
    first, colon, last = text.partition(":")
    try:
        seeds = range(int(first or 0), int(last) if colon else int(first) + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a seed nor FROM:TO") from None
    if seeds.stop < seeds.start:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of seeds: TO is less than FROM")
    return seeds


def _show_progress(summary: Summary, total: int) -> None:
    """Update one line on a terminal; elsewhere print a line every 100 runs, if there are more than 100."""
    broken = sum(map(len, summary.broken.values()))
    text = f"{summary.runs} of {total} runs, {broken} broken"
    if sys.stderr.isatty():
        print(f"\r{text}", end="", file=sys.stderr)
    elif summary.runs % EVERY == 0 and total > EVERY:
        print(text, file=sys.stderr, flush=True)


def exit_with(main: Callable[[], int]) -> None:
    """Run a command, and end the process with its status."""
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of stdout has ended; without this Python would raise again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)
