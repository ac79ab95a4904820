"""`asyncgroup.run` in a program: signals, shutdown, exit code; and the first handler of the README."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from asyncgroup import ConfigError, ConsumerGroup, Producer, UsageError, WorkQueue
from asyncgroup.broker import EmbeddedCluster
from asyncgroup.program import run
from tests.cli.programs import LIMIT, environment
from tests.guide.pages import snippet

STOPS = [signal.SIGINT, signal.SIGTERM]

WORK = """
import asyncio, sys
from asyncgroup import ConsumerConfig, ConsumerGroup, run

async def work(session, claim):
    async for record in claim:
        print("begin", flush=True)
        try:
            await {body}
        except asyncio.CancelledError:
            print("cancelled", flush=True)
            raise
        claim.mark(record)
        print("done", flush=True)

group = ConsumerGroup({servers!r}, "printers", ConsumerConfig(auto_offset_reset="earliest", close_timeout=60.0))
sys.exit(run(group, "greetings", work))
"""


WATCHED = WORK.replace(
    "    async for record in claim:\n",
    """\
    async def watch():
        await session.wait_ended()
        print("ending", flush=True)
    watching = asyncio.create_task(watch())
    async for record in claim:
""",
)
"""The same; it also prints when the session begins to end."""


class Program:
    """A running Python program."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def line(self) -> str:
        assert self._process.stdout is not None
        async with asyncio.timeout(LIMIT):
            return (await self._process.stdout.readline()).decode().strip()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def end(self) -> tuple[int | None, str, str]:
        """Return the exit code and the rest of stdout and stderr."""
        async with asyncio.timeout(LIMIT):
            out, err = await self._process.communicate()
        return self._process.returncode, out.decode(), err.decode()


@asynccontextmanager
async def program(code: str) -> AsyncIterator[Program]:
    """Run a Python program; kill it at the end of the block if it has not ended."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=pipe, stderr=pipe, env=environment()
    )
    try:
        yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@asynccontextmanager
async def greetings() -> AsyncIterator[EmbeddedCluster]:
    """Yield a broker with one record in topic `greetings`."""
    async with EmbeddedCluster(nodes=1) as cluster:
        cluster.create_topic("greetings", 1)
        async with Producer(cluster.bootstrap_servers) as producer:
            await producer.send("greetings", b"hello")
        yield cluster


def committed(cluster: EmbeddedCluster) -> dict[tuple[str, int], int]:
    return {tuple(tp): each.offset for tp, each in cluster.group("printers").offsets.items()}


@pytest.mark.parametrize("number", STOPS)
async def test_the_readmes_first_handler_ends_without_a_traceback(number: signal.Signals) -> None:
    async with greetings() as cluster:
        code = snippet("README", "run(group,").replace("127.0.0.1:9092", cluster.bootstrap_servers)
        async with program("__name__ = '__main__'\n" + code) as readme:
            assert await readme.line() == "0 0 b'hello'"
            readme.signal(number)
            assert await readme.end() == (0, "", "")
        assert committed(cluster) == {("greetings", 0): 1}
        assert cluster.group("printers").members == {}


@pytest.mark.parametrize("number", STOPS)
async def test_a_signal_closes_the_group_and_sets_the_exit_code(number: signal.Signals) -> None:
    """The handler finishes the record that it works on, which is committed."""
    async with greetings() as cluster:
        code = WORK.format(body="asyncio.sleep(0.5)", servers=cluster.bootstrap_servers)
        async with program(code) as worker:
            assert await worker.line() == "begin"
            worker.signal(number)
            assert await worker.end() == (128 + number, "done\n", "")
        assert committed(cluster) == {("greetings", 0): 1}


REFUSING_LOG = """
import logging

def refuse(record):
    raise OSError("the disk of the log is full")

logging.getLogger("asyncgroup.group").setLevel(logging.INFO)
logging.getLogger("asyncgroup.group").addFilter(lambda record: "closing" not in record.getMessage() or refuse(record))
"""


async def test_a_signal_closes_the_group_although_a_log_filter_raises() -> None:
    """Regression test: the signal had no effect."""
    async with greetings() as cluster:
        code = REFUSING_LOG + WORK.format(body="asyncio.sleep(0.5)", servers=cluster.bootstrap_servers)
        async with program(code) as worker:
            assert await worker.line() == "begin"
            worker.signal(signal.SIGTERM)
            ended, out, err = await worker.end()
            assert (ended, out) == (128 + signal.SIGTERM, "done\n")
            assert "the disk of the log is full" in err
        assert committed(cluster) == {("greetings", 0): 1}


async def test_a_second_signal_cancels_the_handlers() -> None:
    """The member still leaves; the interrupted record is not committed."""
    async with greetings() as cluster:
        code = WATCHED.format(body="asyncio.sleep(3600)", servers=cluster.bootstrap_servers)
        async with program(code) as worker:
            assert await worker.line() == "begin"
            worker.signal(signal.SIGTERM)
            assert await worker.line() == "ending"
            worker.signal(signal.SIGINT)
            assert await worker.end() == (128 + signal.SIGTERM, "cancelled\n", "")
        assert committed(cluster) == {}
        assert cluster.group("printers").members == {}


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
async def test_a_third_signal_ends_the_process(number: signal.Signals) -> None:
    """The process ends even if the handler ignores its cancellation."""
    async with greetings() as cluster:
        code = WATCHED.format(body="asyncio.sleep(3600)", servers=cluster.bootstrap_servers)
        code = code.replace("            raise\n", "            await asyncio.sleep(3600)\n")
        async with program(code) as worker:
            assert await worker.line() == "begin"
            worker.signal(number)
            assert await worker.line() == "ending"
            worker.signal(number)
            assert await worker.line() == "cancelled"
            worker.signal(number)
            assert await worker.end() == (-number, "", "")


BLOCKING = """
def block():
    import time
    while True:
        time.sleep(0.01)
        print(time.monotonic(), flush=True)

"""


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
async def test_a_third_signal_ends_a_process_whose_handler_never_yields(number: signal.Signals) -> None:
    """The first two wait for the event loop, and have no effect."""
    async with greetings() as cluster:
        async with program(
            BLOCKING + WORK.format(body="block()", servers=cluster.bootstrap_servers)
        ) as worker:
            assert await worker.line() == "begin"
            for _ in range(2):
                worker.signal(number)
                sent = time.monotonic()
                while float(await worker.line()) < sent:
                    pass
                await worker.line()  # Python has handled the signal when the function goes on after it
            worker.signal(number)
            code, _, _ = await worker.end()
        assert code == -number
        assert committed(cluster) == {}


async def test_a_signal_while_no_broker_responds() -> None:
    """Before the group is open, a signal ends the program at once."""

    connected = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        await reader.read()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    code = WORK.format(body="asyncio.sleep(0)", servers=f"{host}:{port}")
    async with server, program(code.replace("sys.exit", "print('go', flush=True); sys.exit")) as worker:
        assert await worker.line() == "go"
        async with asyncio.timeout(LIMIT):
            await connected.wait()
        worker.signal(signal.SIGINT)
        assert await worker.end() == (128 + signal.SIGINT, "", "")


async def test_the_handlers_exception_is_raised_itself() -> None:
    async with greetings() as cluster:
        body = "asyncio.sleep(1 / 0)"
        async with program(WORK.format(body=body, servers=cluster.bootstrap_servers)) as worker:
            code, out, err = await worker.end()
    assert (code, out) == (1, "begin\n")
    assert "\nZeroDivisionError: division by zero\nraised by consume_claim of greetings-0 at offset 0" in err
    assert "ExceptionGroup" not in err


async def test_it_raises_in_a_running_event_loop() -> None:
    with pytest.raises(UsageError, match=r"await group\.run\(topics, handler\)"):
        run(ConsumerGroup("127.0.0.1:9", "printers"), "greetings", lambda _session, _claim: None)


@pytest.mark.parametrize("group", ["user:s3cret@kafka:9092", ConsumerGroup, None])
async def test_the_group_is_checked_first(group: object) -> None:
    with pytest.raises(
        ConfigError, match=r"^group of type \w+ is not allowed: a ConsumerGroup: run\("
    ) as caught:
        run(group, "greetings", lambda _session, _claim: None)  # type: ignore[arg-type]
    assert "s3cret" not in str(caught.value)


# --- several groups and queues ----------------------------------------------------------------------------------------------

SEVERAL = """
import asyncio, sys
from asyncgroup import Cluster, ConsumerConfig, ConsumerGroup, WorkQueue, run

async def work(session, claim):
    async for record in claim:
        print("group", flush=True)
        await asyncio.sleep(0.3)
        {body}
        claim.mark(record)

async def handle(delivery):
    print("queue", flush=True)
    await asyncio.sleep(0.3)

cluster = Cluster({servers!r}, ConsumerConfig())
config = ConsumerConfig(auto_offset_reset="earliest", close_timeout=60.0)
group = ConsumerGroup(cluster, "printers", config)
queue = WorkQueue(cluster, "workers", "greetings", config=config)
sys.exit(run((group, "greetings", work), (queue, handle)))
"""


async def test_a_group_and_a_queue_on_one_cluster() -> None:
    """A signal closes both; what both work on is committed."""
    async with greetings() as cluster:
        async with program(SEVERAL.format(body="pass", servers=cluster.bootstrap_servers)) as worker:
            assert {await worker.line(), await worker.line()} == {"group", "queue"}
            worker.signal(signal.SIGTERM)
            assert await worker.end() == (128 + signal.SIGTERM, "", "")
        for name in ("printers", "workers"):
            offsets = cluster.group(name).offsets
            assert [each.offset for each in offsets.values()] == [1]
            assert cluster.group(name).members == {}


async def test_the_error_of_one_closes_the_others() -> None:
    async with greetings() as cluster:
        body = "raise ValueError('no paper')"
        async with program(SEVERAL.format(body=body, servers=cluster.bootstrap_servers)) as worker:
            code, _, err = await worker.end()
        assert code == 1
        assert "ValueError: no paper" in err
        assert [each.offset for each in cluster.group("workers").offsets.values()] == [1]
        assert cluster.group("workers").members == {}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "group of type NoneType"),
        (("localhost:9092", "orders", print), "group of type str"),
        ((ConsumerGroup("localhost:9092", "g"),), r"run\(group, topics, handler\)"),
        ((WorkQueue("localhost:9092", "g", "orders"),), r"run\(queue, handle\)"),
        (((WorkQueue("localhost:9092", "g", "orders"), print),), "an async function"),
    ],
)
async def test_what_cannot_run(arguments: tuple[object, ...], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        run(*arguments)  # type: ignore[call-overload]


@pytest.mark.parametrize("contexts", [print, 5, [ConsumerGroup("localhost:9092", "g"), print], None])
async def test_contexts_are_asynchronous_context_managers(contexts: Any) -> None:
    group = ConsumerGroup("localhost:9092", "g")
    with pytest.raises(ConfigError, match="asynchronous context managers, such as serve_probes"):
        run(group, "orders", print, contexts=contexts)
