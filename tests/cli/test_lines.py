"""`LineReader`: lines, read-ahead, errors, `stop`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from asyncgroup.cli import lines
from asyncgroup.cli.lines import LineReader

pytestmark = pytest.mark.real


async def read(file: Path) -> list[bytes]:
    return [line async for block in LineReader(file) for line in block]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"one", [b"one"]),
        (b"one\n", [b"one"]),
        (b"one\n\ntwo\r\nthree", [b"one", b"", b"two", b"three"]),
        (b"\n", [b""]),
        (b"a\rb\n", [b"a\rb"]),
    ],
)
@pytest.mark.parametrize("chunk", [1, 2, 1000])
async def test_lines_without_line_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes, expected: list[bytes], chunk: int
) -> None:
    monkeypatch.setattr(lines, "CHUNK", chunk)
    file = tmp_path / "lines"
    file.write_bytes(content)
    assert await read(file) == expected


async def test_the_read_ahead_is_limited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lines, "CHUNK", 2)
    file = tmp_path / "lines"
    file.write_bytes(b"x\n" * 100)
    reader = LineReader(file)
    assert await anext(reader) == [b"x"]
    reader.stop()
    rest = [block async for block in reader]
    assert len(rest) <= lines.READ_AHEAD + 1
    with pytest.raises(StopAsyncIteration):
        await anext(reader)


async def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LineReader(tmp_path / "none")


async def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        await anext(LineReader(tmp_path))


async def test_stop_can_be_called_twice_and_after_the_end(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"x\n")
    reader = LineReader(file)
    assert [block async for block in reader] == [[b"x"]]
    reader.stop()
    reader.stop()
    await asyncio.sleep(0)
