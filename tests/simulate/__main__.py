"""`python -m tests.simulate --seeds 0:200`: run simulations by seed, and report violated invariants.

    --seeds 0:200        run these seeds (a single number: one run); from 1000000 on with cooperative members,
                         from 2000000 on with those of the consumer protocol, from 3000000 on with both,
                         from 4000000 on with work queues
    --jobs 2             number of processes
    --seed 17 --story    one run with its events line by line; --requests adds every request
    --json               one JSON object per run and line, instead of text
    --no-shrink          do not shorten the plans of failing runs
    --mutation "name"    introduce a bug into the clients or brokers, and find the first seed that detects it; `all`: every
                         mutation in turn

The exit status is 1 if a run violated an invariant, or a mutation was not detected.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable

from tests.simulate.mutations import MUTATIONS, find_mutation
from tests.simulate.parallel import outcomes
from tests.simulate.report import Summary, describe_failure, describe_plan
from tests.simulate.run import Outcome, run_plan, run_seed
from tests.simulate.seeds import plan_of
from tests.simulate.shrink import shrink

__all__ = ["main", "seed_range"]

EVERY = 100
"""Runs per line of progress if the output is not a terminal."""


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = _options(None if arguments is None else list(arguments))
    if options.mutation is not None:
        return _find_mutations(
            list(MUTATIONS) if options.mutation == "all" else [options.mutation], options.seeds
        )
    if options.story or options.requests:
        return _tell(options.seeds.start, requests=options.requests)
    summary = Summary()
    for outcome in outcomes(options.seeds, options.jobs):
        summary.add(outcome)
        if options.json:
            print(json.dumps(outcome.as_dict), flush=True)
        elif outcome.violation is not None:
            _show_failure(outcome, shorten=options.shrink)
        if not options.json:
            _show_progress(summary, len(options.seeds))
    if not options.json:
        print("\n".join(["", *summary.lines()]))
    return 1 if summary.broken else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seeds", type=seed_range, default=range(200), metavar="FROM:TO")
    which.add_argument("--seed", type=seed_range, dest="seeds", metavar="N")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--story", action="store_true")
    parser.add_argument("--requests", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-shrink", action="store_false", dest="shrink")
    parser.add_argument("--mutation", choices=["all", *MUTATIONS], metavar="NAME")
    return parser.parse_args(arguments)


def seed_range(text: str) -> range:
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


def _tell(seed: int, *, requests: bool) -> int:
    outcome = run_seed(seed)
    print("\n".join([*describe_plan(plan_of(seed)), "", *outcome.story]))
    if requests:
        print("\n".join(["", "requests:", *outcome.requests]))
    print(f"digest {outcome.digest}, {outcome.virtual_seconds:.3f} s, {outcome.violation or 'no violation'}")
    return 0 if outcome.violation is None else 1


def _show_failure(outcome: Outcome, *, shorten: bool) -> None:
    plan = plan_of(outcome.seed)
    if shorten:
        plan, outcome = shrink(plan, run_plan(plan))
    print("\n" + describe_failure(outcome, plan), flush=True)


def _find_mutations(mutations: Iterable[str], seeds: range) -> int:
    """Print a line per mutation: the seed that detected it, and the violated invariant."""
    missed = 0
    for mutation in mutations:
        began = time.perf_counter()
        found = find_mutation(mutation, seeds)
        seconds = time.perf_counter() - began
        if found is None or found.violation is None:
            missed += 1
            print(f"{mutation:<44} NOT FOUND in {len(seeds)} seeds, {seconds:.0f} s", flush=True)
        else:
            print(f"{mutation:<44} seed {found.seed:<4} {found.violation.name} ({seconds:.0f} s)", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of stdout has ended; without this Python would raise again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)
