"""`run_queue` in a program: signals, the close in order, the exit code."""

from __future__ import annotations

import signal

import pytest

from asyncgroup import ConfigError, UsageError, WorkQueue
from asyncgroup.workqueue import Delivery, in_thread, run_queue
from tests.test_program import STOPS, committed, greetings, program

WORK = """
import asyncio, sys
from asyncgroup import ConsumerConfig
from asyncgroup.workqueue import WorkQueue, run_queue

async def handle(delivery):
    print("begin", flush=True)
    try:
        await asyncio.sleep({seconds})
    except asyncio.CancelledError:
        print("cancelled", flush=True)
        raise
    print("done", flush=True)

config = ConsumerConfig(close_timeout=60.0)
sys.exit(run_queue(WorkQueue({servers!r}, "printers", "greetings", initial_position="earliest", config=config), handle))
"""


@pytest.mark.parametrize("number", STOPS)
async def test_a_signal_closes_the_queue_and_sets_the_exit_code(number: signal.Signals) -> None:
    """The handler ends, and its record is committed."""
    async with greetings() as cluster:
        async with program(WORK.format(seconds=0.5, servers=cluster.bootstrap_servers)) as worker:
            assert await worker.line() == "begin"
            worker.signal(number)
            assert await worker.end() == (128 + number, "done\n", "")
        assert committed(cluster) == {("greetings", 0): 1}
        assert cluster.group("printers").members == {}


async def test_the_second_signal_cancels_the_handlers() -> None:
    async with greetings() as cluster:
        async with program(WORK.format(seconds=1e6, servers=cluster.bootstrap_servers)) as worker:
            assert await worker.line() == "begin"
            worker.signal(signal.SIGTERM)
            worker.signal(signal.SIGINT)
            code, out, err = await worker.end()
        assert (out, err) == ("cancelled\n", "")
        assert code in {128 + signal.SIGTERM, 128 + signal.SIGINT}
        assert committed(cluster).get(("greetings", 0), 0) == 0


async def _handle(delivery: Delivery) -> None:
    raise AssertionError(delivery)


async def test_mistakes() -> None:
    with pytest.raises(ConfigError, match="queue of type str is not allowed: a WorkQueue"):
        run_queue("localhost:9092", _handle)  # type: ignore[arg-type]
    queue = WorkQueue("127.0.0.1:9092", "g", "orders")
    with pytest.raises(UsageError, match=r"run_queue\(\) starts an event loop, but one is already running"):
        run_queue(queue, _handle)


def _handle_two(delivery: Delivery, session: object) -> None:
    raise AssertionError(delivery, session)


async def test_a_handler_with_other_arguments_is_refused_before_anything_is_opened() -> None:
    queue = WorkQueue("127.0.0.1:9092", "g", "orders")
    with pytest.raises(ConfigError, match=r"handle=.* an async function"):
        run_queue(queue, _handle_two)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"called with one argument, the delivery \(missing .*'session'\)"):
        run_queue(queue, in_thread(_handle_two))  # type: ignore[arg-type]
