"""Go clients against the embedded cluster: sarama and franz-go (`peers/`). Skipped without Go or its modules."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from asyncgroup.broker import EmbeddedCluster
from tests.interop import go_clients
from tests.interop.go_clients import BUILD_LIMIT, build_go_clients

LIMIT: Final = 90.0
RECORDS, MORE = 200, 20


@pytest.fixture(scope="module")
def program() -> Path:
    return build_go_clients()


@pytest.mark.parametrize("go", [None, "echo 'no modules' >&2; exit 1"])
def test_the_reason_of_the_skip_names_what_is_missing(
    go: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without Go, and without its modules."""
    if go is not None:
        (tmp_path / "go").write_text(f"#!/bin/sh\n{go}\n")
        (tmp_path / "go").chmod(0o755)
    monkeypatch.setattr(go_clients, "user_cache", lambda: tmp_path / "cache")
    monkeypatch.setenv("PATH", str(tmp_path))
    reason = "Go is not installed" if go is None else "the Go clients cannot be built: no modules"
    with pytest.raises(pytest.skip.Exception, match=reason):
        build_go_clients()
    assert list((tmp_path / "cache").rglob("peers-*")) == []


def test_concurrent_tests_build_the_program_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "go").write_text('#!/bin/sh\necho built >> "$0.log"\n: > "$5"\n')
    (tmp_path / "go").chmod(0o755)
    monkeypatch.setattr(go_clients, "user_cache", lambda: tmp_path / "cache")
    monkeypatch.setenv("PATH", str(tmp_path))
    with ThreadPoolExecutor(4) as pool:
        programs = {future.result() for future in [pool.submit(build_go_clients) for _ in range(4)]}
    assert [program.exists() for program in programs] == [True]
    assert (tmp_path / "go.log").read_text() == "built\n"


async def run(program: Path, *arguments: str) -> dict[str, Any]:
    """Run the program; return its report."""
    process = await asyncio.create_subprocess_exec(
        program, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(LIMIT):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()[-3000:]
    seen: dict[str, Any] = json.loads(output)
    return seen


@pytest.mark.timeout(BUILD_LIMIT + LIMIT)
@pytest.mark.parametrize("client", ["sarama", "franz-go"])
async def test_go_produces_shares_a_group_resumes_and_writes_transactions(program: Path, client: str) -> None:
    async with EmbeddedCluster(nodes=3) as cluster:
        cluster.create_topic("orders", 4)
        cluster.create_topic("payments", 1)
        seen = await run(program, cluster.bootstrap_servers, client)
        values = [f"value-{number}" for number in range(RECORDS + MORE)]
        # every record was read once, and both members read some
        assert set(seen["together"]) == {"first", "second"}
        assert sorted(value for part in seen["together"].values() for value in part) == sorted(
            values[:RECORDS]
        )
        assert list(seen["resumed"]) == ["late"]
        assert sorted(seen["resumed"]["late"]) == sorted(values[RECORDS:])
        assert sorted(record.value or b"" for record in cluster.records("orders")) == sorted(
            map(str.encode, values)
        )
        view = cluster.group("go")
        assert view.state == "Empty"
        assert sum(offset.offset for offset in view.offsets.values()) == RECORDS + MORE
        assert seen["committed"] == ["c0", "c1", "c2", "c3"]
        written = [record.value for record in cluster.records("payments")]
        assert written == [b"c0", b"c1", b"lost", b"lost", b"c2", b"c3"]
