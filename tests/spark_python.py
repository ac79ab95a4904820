"""Python processes of Spark in the quick profile: forked with Spark's and our modules imported.

Each start of a stream or lookup of a source runs a process of Python, and each Python worker imports pyarrow or pandas at
its first use: half a second of CPU, often while a test waits. The full profile runs them as users do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.profiles import current_profile

__all__ = ["python_of_spark"]

VARIABLE: Final = "PYSPARK_PYTHON"

SCRIPT: Final = """#!/bin/sh
# Python; a module with `-m` is forked
[ "$1" = -m ] || exec {python} "$@"
shift
ASYNCGROUP_TESTS_SERVER={server} exec {launcher} "$@"
"""


@contextmanager
def python_of_spark(directory: Path) -> Iterator[None]:
    """Let Spark that starts in the block run a program in `directory` instead of Python, unless the user has chosen one."""
    with pytest.MonkeyPatch.context() as patch:
        if current_profile() == "quick" and VARIABLE not in os.environ:
            patch.setenv(VARIABLE, str(_forked_python(directory)))
        yield


def _forked_python(directory: Path) -> Path:
    from tests.forked.server import forked, forking

    program = directory / "python"
    server = forking({}, "spark")["ASYNCGROUP_TESTS_SERVER"]
    launcher = " ".join(forked("")).rstrip()
    program.write_text(SCRIPT.format(python=sys.executable, server=server, launcher=launcher))
    program.chmod(0o755)
    return program
