"""`python -m benchmarks` lists the benchmarks, also after a name that no benchmark has."""

from __future__ import annotations

import pytest

from benchmarks.__main__ import main


@pytest.mark.parametrize(
    ("arguments", "code", "first"),
    [
        ([], 0, "usage: python -m benchmarks NAME"),
        (["--help"], 0, "usage: python -m benchmarks NAME"),
        (["nosuch"], 2, "no benchmark 'nosuch'"),
    ],
)
def test_the_list(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, first: str) -> None:
    assert main(arguments) == code
    assert capsys.readouterr().out.startswith(first)
