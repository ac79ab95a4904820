"""`python -m tests.simulate --seeds 0:200`: run seeds, and say what broke.

    --seeds 0:200        these runs (one number: one run)
    --jobs 2             in so many processes
    --seed 17 --story    one run, told line by line; --requests adds every request of it
    --json               an object a run instead of text, one a line
    --no-shrink          failing stories as they are, not shortened first

Exit status 1 if any run broke an invariant.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor

from tests.simulate.plan import plan_of
from tests.simulate.report import Summary, describe_failure
from tests.simulate.run import Outcome, run_plan, run_seed
from tests.simulate.shrink import shrink

__all__ = ["main"]

CHUNK = 8
"""Seeds that a process gets at a time."""


def main(arguments: Iterable[str] | None = None) -> int:
    """The command; its exit status."""
    options = _options(None if arguments is None else list(arguments))
    if options.story or options.requests:
        return _tell(options.seeds.start, requests=options.requests)
    summary = Summary()
    for outcome in _outcomes(options.seeds, options.jobs):
        summary.add(outcome)
        if options.json:
            print(json.dumps(outcome.as_dict), flush=True)
        elif outcome.violation is not None:
            _show_failure(outcome, shorten=options.shrink)
        if not options.json and sys.stderr.isatty():
            broken = sum(map(len, summary.broken.values()))
            print(f"\r{summary.runs} of {len(options.seeds)} runs, {broken} broken", end="", file=sys.stderr)
    if not options.json:
        print("\n".join(["", *summary.lines()]))
    return 1 if summary.broken else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulate", description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seeds", type=_seeds, default=range(200), metavar="FROM:TO")
    which.add_argument("--seed", type=_seeds, dest="seeds", metavar="N")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--story", action="store_true")
    parser.add_argument("--requests", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-shrink", action="store_false", dest="shrink")
    return parser.parse_args(arguments)


def _seeds(text: str) -> range:
    first, colon, last = text.partition(":")
    return range(int(first or 0), int(last) if colon else int(first) + 1)


def _outcomes(seeds: range, jobs: int) -> Iterator[Outcome]:
    """In the order of the seeds, whoever runs them."""
    if jobs <= 1:
        yield from map(run_seed, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(run_seed, seeds, chunksize=CHUNK)


def _tell(seed: int, *, requests: bool) -> int:
    outcome = run_seed(seed)
    print("\n".join(outcome.story))
    if requests:
        print("\n".join(["", "requests:", *outcome.requests]))
    print(f"digest {outcome.digest}, {outcome.virtual_seconds:.3f} s, {outcome.violation or 'all well'}")
    return 0 if outcome.violation is None else 1


def _show_failure(outcome: Outcome, *, shorten: bool) -> None:
    plan = plan_of(outcome.seed)
    if shorten:
        plan, outcome = shrink(plan, run_plan(plan))
    actions = [f"{action.at:8.3f} {action}" for action in plan.actions]
    print("\n" + describe_failure(outcome, actions), flush=True)


if __name__ == "__main__":
    sys.exit(main())
