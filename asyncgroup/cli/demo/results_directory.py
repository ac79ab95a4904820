"""Where the results lie."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

__all__ = ["ResultsDirectory"]


class ResultsDirectory:
    """A directory with the results, in the user's place or a new one among the temporary files.

    There the plot and the pipeline's Parquet stay when the demonstration went well, and nothing if it didn't; in the
    user's own place everything stays.
    """

    def __init__(self, keep: Path | None) -> None:
        self._is_kept = keep is not None
        self.root = keep if keep is not None else Path(tempfile.mkdtemp(prefix="asyncgroup-demo-"))
        self.root.mkdir(parents=True, exist_ok=True)

    @property
    def flights(self) -> Path:
        """What the group writes through the bridge."""
        return self.root / "flights"

    def clean_up(self, *, well: bool) -> None:
        """Remove what nobody asked for."""
        if self._is_kept:
            return
        for place in (self.flights, self.root / "checkpoints") if well else (self.root,):
            shutil.rmtree(place, ignore_errors=True)
