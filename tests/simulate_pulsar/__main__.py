"""`python -m tests.simulate_pulsar --seeds 0:200`: simulations of Pulsar's client and the embedded brokers, by seed.

    --seeds 0:200        run these seeds; from 1000000 on with transactions
    --jobs 2             number of processes
    --seed 17 --story    one run with its events line by line; --requests adds every request
    --no-shrink          do not shorten the plans of failing runs
    --mutation "name"    introduce a bug into clients or brokers, and find the first seed that detects it; `all`: each in turn

The exit status is 1 if a run violated an invariant, or a mutation was not detected.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable

from tests.simulate.__main__ import seed_range
from tests.simulate.shrink import shrink
from tests.simulate_pulsar.mutations import MUTATIONS, find_mutation
from tests.simulate_pulsar.parallel import outcomes
from tests.simulate_pulsar.planner import plan_of
from tests.simulate_pulsar.report import RunSummary, describe_failed_run, describe_script
from tests.simulate_pulsar.run import run_plan, run_seed

__all__ = ["main"]


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command; return its exit status."""
    options = _options(None if arguments is None else list(arguments))
    if options.mutation is not None:
        names = list(MUTATIONS) if options.mutation == "all" else [options.mutation]
        return _find_mutations(names, options.seeds)
    if options.story or options.requests:
        return _tell(options.seeds.start, requests=options.requests)
    summary, began = RunSummary(), time.perf_counter()
    for outcome in outcomes(options.seeds, options.jobs):
        summary.add(outcome)
        if outcome.violation is not None:
            plan = plan_of(outcome.seed)
            if options.shrink:
                plan, outcome = shrink(plan, outcome, run=run_plan)
            print("\n" + describe_failed_run(outcome, plan), flush=True)
    minutes = (time.perf_counter() - began) / 60
    print("\n".join(["", *summary.lines(), f"{summary.runs / minutes:,.0f} seeds per minute"]))
    return 1 if summary.broken else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulate_pulsar",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seeds", type=seed_range, default=range(200), metavar="FROM:TO")
    which.add_argument("--seed", type=seed_range, dest="seeds", metavar="N")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--story", action="store_true")
    parser.add_argument("--requests", action="store_true")
    parser.add_argument("--no-shrink", action="store_false", dest="shrink")
    parser.add_argument("--mutation", choices=["all", *MUTATIONS], metavar="NAME")
    return parser.parse_args(arguments)


def _tell(seed: int, *, requests: bool) -> int:
    outcome = run_seed(seed)
    print("\n".join([*describe_script(plan_of(seed)), "", *outcome.story]))
    if requests:
        print("\n".join(["", "requests:", *outcome.requests]))
    print(f"digest {outcome.digest}, {outcome.virtual_seconds:.3f} s, {outcome.violation or 'no violation'}")
    return 0 if outcome.violation is None else 1


def _find_mutations(mutations: Iterable[str], seeds: range) -> int:
    missed = 0
    for mutation in mutations:
        began = time.perf_counter()
        found = find_mutation(mutation, seeds)
        seconds = time.perf_counter() - began
        if found is None or found.violation is None:
            missed += 1
            print(f"{mutation:<52} NOT FOUND in {len(seeds)} seeds, {seconds:.0f} s", flush=True)
        else:
            print(f"{mutation:<52} seed {found.seed:<4} {found.violation.name} ({seconds:.0f} s)", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
