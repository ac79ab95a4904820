"""What importing, creating and entering a client loads, and how long the import takes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import asyncgroup
from asyncgroup.model import TopicPartition
from asyncgroup.testing import KafkaServer
from asyncgroup.wire.loading import CLIENT_MODULES
from asyncgroup.wire.messages import _NAMES
from tests.profiles import current_profile

PACKAGE = Path(asyncgroup.__file__).parent
README = PACKAGE.parent / "README.md"
HEAVY = {"aiokafka", "anyio", "asyncio", "cramjam", "pyarrow", "ssl"}
IMPORT = "from asyncgroup import Claim, ConsumerConfig, ConsumerGroup, Handler, Session"
LOADED = {
    "asyncgroup",
    "asyncgroup.checks",
    "asyncgroup.config",
    "asyncgroup.config.client",
    "asyncgroup.config.consumer",
    "asyncgroup.config.producer",
    "asyncgroup.error_codes",
    "asyncgroup.errors",
    "asyncgroup.escaping",
    "asyncgroup.foreign_names",
    "asyncgroup.group",
    "asyncgroup.group.sessions.claim",
    "asyncgroup.group.consumer_group",
    "asyncgroup.group.foreign_names",
    "asyncgroup.group.sessions",
    "asyncgroup.group.sessions.handler",
    "asyncgroup.group.sessions.session",
    "asyncgroup.lazy_names",
    "asyncgroup.model",
    "asyncgroup.named_arguments",
    "asyncgroup.topic_partition",
}
"""All that the import loads. Another module here costs every program that imports asyncgroup: is it needed that early?"""

IMPORT_WITH_RUN = IMPORT + ", run"
"""The line of README's first program. Its `run` starts an event loop, so this loads asyncio too."""

LOADED_WITH_RUN = LOADED | {"asyncgroup.program", "asyncgroup.lifecycle", "asyncgroup.signals"}

VALUES = {
    "Record, Batch, TopicPartition": {
        "asyncgroup.escaping",
        "asyncgroup.model",
        "asyncgroup.topic_partition",
    },
    "Health": {
        "asyncgroup.escaping",
        "asyncgroup.foreign_names",
        "asyncgroup.group",
        "asyncgroup.group.health",
        "asyncgroup.group.health.health",
        "asyncgroup.model",
        "asyncgroup.topic_partition",
    },
    "Hook": {
        "asyncgroup.error_codes",
        "asyncgroup.errors",
        "asyncgroup.escaping",
        "asyncgroup.hook",
        "asyncgroup.hooks",
        "asyncgroup.topic_partition",
    },
    "ClientConfig, ProducerConfig": {
        "asyncgroup.checks",
        "asyncgroup.config",
        "asyncgroup.config.client",
        "asyncgroup.config.consumer",
        "asyncgroup.config.producer",
        "asyncgroup.error_codes",
        "asyncgroup.errors",
        "asyncgroup.escaping",
        "asyncgroup.topic_partition",
    },
}
"""What values and descriptions load besides the package itself."""

CREATE = f"{IMPORT}\ngroup = ConsumerGroup('127.0.0.1:1', 'g', ConsumerConfig(connect_timeout=0.2))"
ENTER = f"""{CREATE}
import asyncio

async def main():
    try:
        await group.__aenter__()
    except Exception as error:
        assert type(error).__name__ == "NoBrokersError", error
    else:
        raise AssertionError("a broker listens on port 1")

asyncio.run(main())"""

RECORD = """
import asyncio, sys

class Recorder:
    def __init__(self):
        self.on_loop = []

    def find_spec(self, name, path=None, target=None):
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return None
        self.on_loop.append(name)

recorder = Recorder()
sys.meta_path.insert(0, recorder)
"""
"""Keeps the names of the modules that are imported on a thread with a running event loop."""

CONSUME = """
class Consuming(Handler):
    async def consume_claim(self, session, claim):
        async for record in claim:
            claim.mark(record)
            await session.commit()
            await group.aclose()

async def main():
    async with group:
        await group.run("orders", Consuming())

asyncio.run(main())
"""


def modules_after(code: str) -> set[str]:
    """Return the modules that a new process has loaded after running `code`."""
    show = "import json, sys; print(json.dumps(sorted(sys.modules)))"
    command = [sys.executable, "-c", f"{code}\n{show}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=PACKAGE.parent)
    return set(json.loads(done.stdout))


def ours(names: set[str]) -> set[str]:
    return {name for name in names if name.split(".")[0] == "asyncgroup"}


def message_modules(names: set[str]) -> set[str]:
    prefix = "asyncgroup.wire.messages."
    return {name.removeprefix(prefix) for name in names if name.startswith(prefix)}


def test_importing_loads_only_what_the_names_need() -> None:
    loaded = modules_after(IMPORT)
    assert ours(loaded) == LOADED
    assert not loaded & HEAVY


def test_the_first_program_of_the_readme_has_this_import() -> None:
    found = re.search(r"^from asyncgroup import .*$", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert found
    assert found[0] == IMPORT_WITH_RUN


def test_importing_run_loads_little_besides_asyncio() -> None:
    loaded = modules_after(IMPORT_WITH_RUN)
    assert ours(loaded) == LOADED_WITH_RUN
    assert not loaded & (HEAVY - {"anyio", "asyncio", "ssl"})


@pytest.mark.parametrize("names", VALUES)
def test_importing_a_value_loads_no_client(names: str) -> None:
    loaded = modules_after(f"from asyncgroup import {names}")
    assert ours(loaded) == {"asyncgroup", "asyncgroup.lazy_names", *VALUES[names]}
    assert not loaded & HEAVY


@pytest.mark.parametrize("name", ["Claim", "Cluster", "Consumer", "OffsetManager", "Producer", "Session"])
def test_importing_a_client_loads_neither_aiokafka_nor_messages(name: str) -> None:
    loaded = modules_after(f"from asyncgroup import {name}")
    assert "aiokafka" not in loaded
    assert not message_modules(loaded)


def test_creating_a_client_loads_neither_aiokafka_nor_messages() -> None:
    loaded = modules_after(CREATE)
    assert "asyncgroup.group.group" not in loaded
    assert "aiokafka" not in loaded
    assert not message_modules(loaded)


def test_entering_a_client_loads_what_its_traffic_needs() -> None:
    loaded = modules_after(ENTER)
    assert {"aiokafka", "asyncgroup.wire.compiled"} <= loaded
    assert message_modules(loaded) == set(CLIENT_MODULES)


def test_entering_a_client_imports_nothing_on_the_loops_thread() -> None:
    """Handlers of other groups may already run there."""
    modules_after(f"{RECORD}{ENTER}\nassert not recorder.on_loop, recorder.on_loop")


def test_a_first_session_imports_nothing_on_the_loops_thread() -> None:
    with KafkaServer(topics={"orders": 1}) as kafka:
        kafka.produce("orders", b"one")
        config = "ConsumerConfig(auto_offset_reset='earliest')"
        create = f"{IMPORT}\ngroup = ConsumerGroup({kafka.bootstrap_servers!r}, 'g', {config})"
        modules_after(f"{RECORD}{create}{CONSUME}\nassert not recorder.on_loop, recorder.on_loop")
        assert kafka.group("g").offsets[TopicPartition("orders", 0)].offset == 1


def test_imports_on_the_loops_thread_are_recorded() -> None:
    code = f"{RECORD}\nasync def main():\n    import asyncgroup.model\n\nasyncio.run(main())"
    modules_after(f"{code}\nassert 'asyncgroup.model' in recorder.on_loop")


ADMINISTRATIVE: Final = {
    "alter_client_quotas",
    "alter_partition_reassignments",
    "alter_replica_log_dirs",
    "alter_user_scram_credentials",
    "create_acls",
    "create_partitions",
    "create_topics",
    "delete_acls",
    "delete_groups",
    "delete_records",
    "delete_topics",
    "describe_acls",
    "describe_client_quotas",
    "describe_cluster",
    "describe_log_dirs",
    "describe_producers",
    "describe_quorum",
    "describe_topic_partitions",
    "describe_user_scram_credentials",
    "elect_leaders",
    "incremental_alter_configs",
    "list_groups",
    "list_partition_reassignments",
    "list_transactions",
    "offset_delete",
    "update_features",
    "write_txn_markers",
}
"""Messages that most clients never send: imported at the first use, which takes a fifth of a millisecond for each."""


def test_the_messages_of_clients_are_those_that_entering_loads() -> None:
    """A message that is missing in the list would be imported in the middle of traffic."""
    used = set()
    for room in ("cluster", "consumer", "group", "offsets", "producer"):
        for path in (PACKAGE / room).rglob("*.py"):
            used |= set(re.findall(r"\bm\.([A-Z]\w+)", path.read_text(encoding="utf-8")))
    modules = {module for module, names in _NAMES.items() if used & set(names)}
    assert modules >= ADMINISTRATIVE
    assert modules - ADMINISTRATIVE == set(CLIENT_MODULES)


def cpu_seconds(code: str) -> float:
    """Return the CPU time (user and system) of a new process that runs `code`."""
    process = subprocess.Popen([sys.executable, "-c", code], cwd=PACKAGE.parent)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


def test_importing_takes_no_longer_than_importing_aiokafka() -> None:
    """The least CPU time of several runs in turn, of more runs on a busy machine: other processes add to the time of a run."""
    times = 7 if current_profile() == "full" else 4
    some = more = theirs = float("inf")
    for done in range(1, 5 * times + 1):
        some = min(some, cpu_seconds(IMPORT))
        more = min(more, cpu_seconds(IMPORT_WITH_RUN))
        theirs = min(theirs, cpu_seconds("import aiokafka"))
        if done >= times and max(some, more) <= theirs:
            break
    assert max(some, more) <= theirs, f"{some:.3f} and {more:.3f} s of CPU, aiokafka takes {theirs:.3f} s"
