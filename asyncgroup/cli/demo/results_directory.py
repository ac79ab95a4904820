"""The directory of the demonstration's results, and what is kept of it at the end."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

__all__ = ["ResultsDirectory"]


class ResultsDirectory:
    """The directory that the user gave, or a new temporary one.

    In the user's directory all files are kept. Of a temporary one only the plot and the pipeline's Parquet files are kept
    after a success, and nothing after a failure.
    """

    def __init__(self, keep: Path | None) -> None:
        self._is_kept = keep is not None
        self.root = keep if keep is not None else Path(tempfile.mkdtemp(prefix="asyncgroup-demo-"))
        self.root.mkdir(parents=True, exist_ok=True)

    @property
    def flights(self) -> Path:
        """The directory to which the group writes through the bridge."""
        return self.root / "flights"

    def clean_up(self, *, well: bool) -> None:
        """Remove the files that are not kept; `well`: whether the demonstration was successful."""
        if self._is_kept:
            return
        for path in (self.flights, self.root / "checkpoints") if well else (self.root,):
            shutil.rmtree(path, ignore_errors=True)
