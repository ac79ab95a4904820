"""The command: run the program of each trip, and compare its files with the goal."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from benchmarks.common import choose, show_table, wrap
from benchmarks.trips.programs import TRIPS, follow
from benchmarks.trips.trace import Trip

__all__ = ["main"]

LEGEND = """\
Files of the package whose functions run between the two points, the median of some passages. Control comes back when a file
in which it was before is called again by another one or by the event loop; returns do not count."""


def main(arguments: Sequence[str]) -> int:
    """Trace the trips; the exit code is 1 if one is longer than its goal and `--check` is given."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks trips", description=__doc__)
    parser.add_argument("--trips", default="", help=f"comma-separated: {', '.join(TRIPS)}")
    parser.add_argument(
        "--files", action="store_true", help="list the files of each trip, and the calls that come back"
    )
    parser.add_argument("--check", action="store_true", help="fail if a trip is longer than its goal")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    names = choose(parser, "--trips", options.trips, list(TRIPS))
    trips = {name: follow(name) for name in names}
    if options.json:
        print(json.dumps({name: _figures(trip) for name, trip in trips.items()}, indent=2))
    else:
        _show(trips, with_files=options.files)
    return int(options.check and any(_is_longer(name, trip) for name, trip in trips.items()))


def _is_longer(name: str, trip: Trip) -> bool:
    case = TRIPS[name]
    return len(trip.files) > case.goal or (case.backs is not None and len(trip.backs) > case.backs)


def _figures(trip: Trip) -> dict[str, object]:
    return {
        "files": trip.files,
        "comes_back": [f"{each.caller} -> {each.file}: {each.function}" for each in trip.backs],
    }


def _show(trips: dict[str, Trip], *, with_files: bool) -> None:
    rows = [
        [
            TRIPS[name].title,
            f"{len(trip.files)}",
            f"{TRIPS[name].goal}",
            f"{len(trip.backs)}",
            "-" if TRIPS[name].backs is None else f"{TRIPS[name].backs}",
        ]
        for name, trip in trips.items()
    ]
    show_table("Trips", ("trip", "files", "goal", "comes back", "goal"), [rows])
    print(wrap(LEGEND))
    for name, trip in trips.items() if with_files else ():
        print(f"\n{TRIPS[name].title}")
        for file in trip.files:
            print(f"  {file}")
        for each in trip.backs:
            print(f"  back: {each.caller or 'event loop'} -> {each.file} {each.function}")
