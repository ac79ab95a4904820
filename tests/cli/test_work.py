"""`work`: handlers by name, the queue until a signal, the figures on the screen, and errors as one line."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from argparse import Namespace
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from asyncgroup import Cluster, ConsumerConfig, OffsetManager, ProducerConfig
from asyncgroup.cli import main
from asyncgroup.cli.app import _parser
from asyncgroup.cli.client_configs import client_config
from asyncgroup.cli.handler_loading import HandlerNotFound, handler_name, load_handler
from asyncgroup.cli.work import serve
from asyncgroup.cli.work_view import QueueView
from asyncgroup.errors import AsyncGroupError, ConfigError
from asyncgroup.group.health.health import Health
from asyncgroup.model import TopicPartition
from asyncgroup.workqueue import PartitionStatistics, QueueCounts, QueueStatistics
from tests.cli.programs import LIMIT, broker, command, environment, run, started
from tests.cli.test_tools import unused_server

HANDLERS = """
    import asyncio
    import os
    import signal
    import threading

    count = 0

    async def handle(delivery):
        if delivery.value == b"poison":
            raise ValueError("cannot be handled")

    async def end_after_three(delivery):
        global count
        count += 1
        if count == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    async def slow(delivery):
        print("begun", delivery.value.decode(), flush=True)
        await asyncio.sleep(0.5)
        print("done", delivery.value.decode(), flush=True)

    async def endless(delivery):
        print("begun", delivery.value.decode(), flush=True)
        try:
            await asyncio.sleep(1e6)
        finally:
            print("cancelled", flush=True)

    def plain(delivery):
        print(threading.current_thread() is threading.main_thread(), delivery.value.decode(), flush=True)

    class Handler:
        async def __call__(self, delivery):
            pass

        async def method(self, delivery):
            pass

    handler = Handler()
    number = 5

    async def two(delivery, session):
        pass

    def plain_without_arguments():
        pass
"""


@pytest.fixture
def handlers(tmp_path: Path) -> Path:
    """A directory with the module `queue_handlers`."""
    (tmp_path / "queue_handlers.py").write_text(textwrap.dedent(HANDLERS))
    (tmp_path / "broken_handlers.py").write_text("raise ValueError('no\\nconfiguration')\n")
    (tmp_path / "importing_handlers.py").write_text("import no_such_package\n")
    (tmp_path / "exiting_handlers.py").write_text("raise SystemExit(3)\n")
    return tmp_path


async def committed(servers: str, group: str, topic: str) -> int:
    async with Cluster(servers) as cluster:
        tp = TopicPartition(topic, 0)
        found = await OffsetManager(cluster, group).fetch([tp])
        return found[tp].offset if tp in found else 0


@contextmanager
def topic_with(lines: str) -> Iterator[str]:
    """A broker with these records in the topic `orders`, of one partition; yields its bootstrap servers."""
    with broker("--topic", "orders:1") as servers:
        run("produce", "-b", servers, "-t", "orders", stdin=lines)
        yield servers


def work(servers: str, handler: str, *more: str) -> tuple[str, ...]:
    return ("work", handler, "-b", servers, "--group", "g", "--topics", "orders", "--from", "earliest", *more)


# --- as a process ---------------------------------------------------------------------------------------------------------


def test_dead_letters_from_work_to_replay(handlers: Path) -> None:
    """A handler fails for one record of a hundred; it becomes a dead letter, is listed, and sent back."""
    values = [f"{number}\n" for number in range(99)]
    with topic_with("".join([*values[:50], "poison\n", *values[50:]])) as servers:
        arguments = work(
            servers, "queue_handlers:handle", "--json", "--nack-delay", "0", "--max-redeliveries", "2"
        )
        with started(*arguments, path=[handlers]) as program:
            figures = json.loads(program.line())
            while figures["dead_lettered"] == 0:
                figures = json.loads(program.line())
            code, out, err = program.end(signal.SIGINT)
        assert code == 130
        last = json.loads(out.splitlines()[-1])
        assert (last["final"], last["acked"], last["nacked"], last["dead_lettered"]) == (True, 99, 3, 1)
        assert (last["delivered"], last["problems"], last["lag"], last["acquired"]) == (102, [], 0, 0)
        assert [(each["tp"], each["base"]) for each in last["partitions"]] == [("orders-0", 100)]
        assert err.splitlines()[-1].startswith("99 records acked in ")
        assert err.splitlines()[-1].endswith(
            "102 delivered, 3 nacked, 0 expired, 0 to retry topics, 1 to dead letter topics"
        )
        assert asyncio.run(committed(servers, "g", "orders")) == 100

        listed = run("dlq", "list", "orders-g-DLQ", "-b", servers, "--json")
        letter = json.loads(listed.stdout)
        assert (letter["origin_topic"], letter["origin_offset"], letter["deliveries"]) == ("orders", 50, 3)
        assert "cannot be handled" in letter["reason"]
        replayed = run("dlq", "replay", "orders-g-DLQ", "-b", servers, "--yes")
        assert (replayed.returncode, replayed.stdout) == (0, "orders-g-DLQ-0@0 -> orders-0@100\n")


def test_sigterm_lets_handlers_end_and_commits(handlers: Path) -> None:
    with topic_with("a\n") as servers:
        with started(*work(servers, "queue_handlers:slow"), path=[handlers]) as program:
            assert program.line() == "begun a\n"
            code, out, err = program.end(signal.SIGTERM)
        assert (code, out) == (143, "done a\n")
        working, closing, summary = err.splitlines()
        assert working == "working: group g, shared: orders; press Ctrl-C to stop"
        assert closing.startswith("closing: handlers that run have close_timeout (30 s) to end")
        assert summary.startswith("1 record acked in ")
        assert asyncio.run(committed(servers, "g", "orders")) == 1


def test_a_handler_in_the_working_directory(handlers: Path) -> None:
    with topic_with("a\nb\nc\n") as servers:
        ended = run(*work(servers, "queue_handlers:end_after_three", "--json"), cwd=handlers)
    assert ended.returncode == 143
    working, summary = ended.stderr.splitlines()
    assert working == "working: group g, shared: orders; press Ctrl-C to stop"
    assert summary.startswith("3 records acked in "), ended.stderr
    last = json.loads(ended.stdout.splitlines()[-1])
    assert (last["final"], last["acked"], last["lag"], last["acquired"]) == (True, 3, 0, 0)
    assert [(each["tp"], each["base"]) for each in last["partitions"]] == [("orders-0", 3)]


def test_a_plain_function_runs_in_threads(handlers: Path) -> None:
    with topic_with("a\n") as servers:
        arguments = work(servers, "queue_handlers:plain", "--in-thread", "--mode", "key_shared")
        with started(*arguments, path=[handlers]) as program:
            assert program.line() == "False a\n"
            code, out, err = program.end()
    assert (code, out) == (130, "")
    assert err.splitlines()[-1].startswith("1 record acked in ")


def test_a_second_signal_cancels_handlers(handlers: Path) -> None:
    with topic_with("a\n") as servers:
        with started(*work(servers, "queue_handlers:endless"), path=[handlers]) as program:
            assert program.line() == "begun a\n"
            program.signal(signal.SIGINT)
            program.wait_for_error("closing: handlers that run")
            code, out, err = program.end()
        assert (code, out) == (130, "cancelled\n")
        assert "Traceback" not in err
        assert asyncio.run(committed(servers, "g", "orders")) in (None, 0, -1)


@pytest.mark.skipif(os.name == "nt", reason="there are no pseudo terminals")
def test_a_terminal_shows_a_live_table(handlers: Path) -> None:
    import pty

    with topic_with("a\n") as servers:
        screen, terminal = pty.openpty()
        arguments = command(*work(servers, "queue_handlers:handle"))
        with (
            os.fdopen(screen, "rb", buffering=0) as output,
            subprocess.Popen(
                arguments, stdout=subprocess.DEVNULL, stderr=terminal, env=environment(handlers)
            ) as process,
        ):
            os.close(terminal)
            shown = b""
            while not re.search(rb"acked +1 ", shown):
                shown += output.read(65_536)
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(OSError):  # the other side is closed
                while rest := output.read(65_536):
                    shown += rest
            code = process.wait(LIMIT)
    assert code == 130
    assert "group g, shared: orders; press Ctrl-C to stop" in shown.decode()
    assert "orders-0" in shown.decode()


def test_help_names_both_commands() -> None:
    shown = run("--help").stdout
    assert "  work " in shown
    assert "  dlq " in shown


@pytest.mark.full
def test_a_second_exclusive_consumer_is_an_error(handlers: Path) -> None:
    with topic_with("a\n") as servers:
        arguments = work(servers, "queue_handlers:slow", "--mode", "exclusive")
        with started(*arguments, path=[handlers]) as program:
            assert program.line() == "begun a\n"
            ended = run(*arguments, path=[handlers])
    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (1, "", 1)
    assert ended.stderr.startswith("asyncgroup work: ")
    assert "'g'" in ended.stderr


def test_an_unreachable_cluster_is_a_one_line_error(handlers: Path) -> None:
    server = unused_server()
    ended = run(*work(server, "queue_handlers:handle"), path=[handlers])
    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (1, "", 1)
    assert ended.stderr.startswith("asyncgroup work: no broker answered")


# --- handlers -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def search_path(handlers: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of handlers as the working directory; changes of the import system are undone."""
    monkeypatch.chdir(handlers)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield handlers
    for name in set(sys.modules) - before:
        if name.endswith("_handlers"):
            del sys.modules[name]


@pytest.mark.usefixtures("search_path")
@pytest.mark.parametrize(
    ("name", "plain", "words"),
    [
        ("no_such_handlers:handle", False, "there is no module 'no_such_handlers' in "),
        ("no_such.handlers:handle", False, "there is no module 'no_such' in "),
        ("queue_handlers.more:handle", False, "there is no module 'queue_handlers.more' in "),
        ("importing_handlers:handle", False, "cannot be imported: No module named 'no_such_package'"),
        ("broken_handlers:handle", False, r"cannot be imported: ValueError: no\nconfiguration (-v shows"),
        ("exiting_handlers:handle", False, "cannot be imported: SystemExit: 3"),
        ("queue_handlers:no_such", False, "queue_handlers.py) has no 'no_such'"),
        ("queue_handlers:handler.no_such", False, "queue_handlers.py) has no 'handler.no_such'"),
        ("queue_handlers:number", False, "is of type int, not a function (delivery)"),
        ("queue_handlers:Handler", False, "is a class, not a function (delivery)"),
        ("queue_handlers:plain", False, "is not a coroutine function: write `async def`, or use --in-thread"),
        (
            "queue_handlers:two",
            False,
            "queue_handlers:two cannot be called with one argument, the delivery: missing a required argument: 'session'",
        ),
        (
            "queue_handlers:plain_without_arguments",
            True,
            "cannot be called with one argument, the delivery: ",
        ),
        ("queue_handlers:handle", True, "is a coroutine function: use it without --in-thread"),
        ("queue_handlers:handler", True, "is a coroutine function: use it without --in-thread"),
    ],
)
def test_a_handler_that_cannot_be_used(name: str, plain: bool, words: str) -> None:
    with pytest.raises(HandlerNotFound) as caught:
        load_handler(handler_name(name), plain=plain)
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.usefixtures("search_path")
@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("queue_handlers:handle", False),
        ("queue_handlers:handler", False),
        ("queue_handlers:handler.method", False),
        ("queue_handlers:plain", True),
    ],
)
def test_handlers_that_can_be_used(name: str, plain: bool) -> None:
    assert callable(load_handler(handler_name(name), plain=plain))


def test_an_error_of_the_handlers_name_is_one_line(
    search_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["work", "no_such_handlers:handle", "-b", "h:1", "--group", "g", "--topics", "t"]) == 1
    assert capsys.readouterr().err == (
        f"asyncgroup work: there is no module 'no_such_handlers' in {search_path} or on the module search path\n"
    )


# --- arguments ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["handle"], "'handle' is not MODULE:FUNCTION, such as billing.orders:handle"),
        (["a.py:handle()"], "is not MODULE:FUNCTION"),
        (["a:b"], "--topics"),
        (["a:b", "--topics", "t,"], "1 to 249 of the characters"),
        (["a:b", "--topics", "t", "-b", "h:1"], "--group is required (or group.id in -X"),
        (["a:b", "--topics", "t", "--group", "g"], "-b/--bootstrap-servers is required"),
        (["a:b", "--topics", "t", "--mode", "both"], "invalid choice: 'both'"),
        (["a:b", "--topics", "t", "--concurrency", "0"], "'0' is not a whole number, 1 or more"),
        (["a:b", "--topics", "t", "--ack-timeout", "0"], "'0' is not a number of seconds above 0"),
        (["a:b", "--topics", "t", "--max-redeliveries", "-1"], "'-1' is not a whole number, 0 or more"),
        (["a:b", "--topics", "t", "--nack-delay", "soon"], "'soon' is not a number of seconds"),
        (["a:b", "--topics", "t", "--nack-delay", "-1"], "'-1' is not a number of seconds, 0 or more"),
    ],
)
def test_wrong_arguments_are_usage_errors(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["work", *arguments])
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--ack-timeout", "0.5"], "ack_timeout=0.5 is not allowed"),
        (["-X", "enable.auto.commit=false"], "auto_commit=False is not allowed"),
        (
            ["-X", "group.protocol=consumer", "--mode", "exclusive"],
            "group_protocol='consumer' is not allowed",
        ),
        (["-X", "transactional.id=t"], "transactional_id='t' is not allowed"),
        (["-X", "no.such.property=1"], "no.such.property"),
    ],
)
def test_settings_that_the_queue_refuses_are_one_line(
    capsys: pytest.CaptureFixture[str], more: list[str], words: str
) -> None:
    assert main(["work", "a:b", "-b", "h:1", "--group", "g", "--topics", "t", *more]) == 1
    err = capsys.readouterr().err
    assert err.startswith("asyncgroup work: ")
    assert (words in err, len(err.splitlines())) == (True, 1)


def parsed(*more: str) -> Namespace:
    return _parser().parse_args(["work", "a:b", "--topics", "t", *more])


def test_each_client_gets_its_properties(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASYNCGROUP_CONFIG", raising=False)
    options = parsed("-X", "linger.ms=7", "-X", "session.timeout.ms=9000", "-X", "client.id=mine")
    consumer = client_config(options, ConsumerConfig, {"chunks": "assemble"}, client_id="default")
    producer = client_config(options, ProducerConfig, client_id="default")
    assert (consumer.session_timeout, consumer.client_id, consumer.chunks) == (9.0, "mine", "assemble")
    assert (producer.linger, producer.client_id) == (0.007, "mine")
    with pytest.raises(ConfigError, match=r"linger\.msec"):
        client_config(parsed("-X", "linger.msec=7"), ConsumerConfig)


# --- the figures ----------------------------------------------------------------------------------------------------------


class FakeQueue:
    """A queue with given figures, which runs until it is closed or `failure` is set."""

    def __init__(self) -> None:
        self.counts = QueueCounts()
        self.partitions: tuple[PartitionStatistics, ...] = ()
        self.at_close: tuple[PartitionStatistics, ...] = ()
        self.problems: tuple[str, ...] = ()
        self.failure: AsyncGroupError | None = None
        self.ended = asyncio.Event()

    def run(self, handle: Any) -> Coroutine[Any, Any, None]:
        return self._run(handle)

    async def _run(self, handle: Any) -> None:
        self.handle = handle
        await self.ended.wait()
        if self.failure is not None:
            raise self.failure

    async def aclose(self) -> None:
        self.ended.set()

    def statistics(self) -> QueueStatistics:
        return QueueStatistics(self.counts, self.partitions, 0, self.at_close)

    def health(self) -> Health:
        state = ("g", "stable", 1.0, "member", 1, "classic", None, None)
        return Health(*state, claims=(), waits_for=None, problems=self.problems, errors=())


def partition(number: int, lag: int, *, is_full: bool = False) -> PartitionStatistics:
    return PartitionStatistics(
        TopicPartition("orders", number), 0, lag, 10, 2, 1, 0, window=0, metadata_bytes=0, is_full=is_full
    )


async def handle(_: object) -> None:
    """A handler."""


def rendered(view: QueueView) -> list[list[str]]:
    """Return the words of each line of the live table."""
    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(view.snapshot().render("the title"))
    assert isinstance(console.file, io.StringIO)
    return [line.split() for line in console.file.getvalue().splitlines() if line.strip(" ─")]


async def test_the_live_table_and_the_rates() -> None:
    queue, now = FakeQueue(), [100.0]
    view = QueueView(queue, lambda: now[0])
    queue.counts.delivered, queue.counts.acked, queue.counts.dead_lettered = 5_000, 4_000, 20
    queue.partitions = tuple(
        partition(number, lag=number * 1_000, is_full=number == 14) for number in range(15)
    )
    queue.problems = ("it is\x1b[31m broken",)
    now[0] += 2.0
    lines = rendered(view)
    assert lines[0] == ["the", "title"]
    assert ["delivered", "5,000", "2,500"] in lines
    assert ["acked", "4,000", "2,000"] in lines
    assert ["to", "dead", "letter", "topics", "20", "10"] in lines
    assert ["acquired", "30"] in lines
    assert [line for line in lines if line[0].startswith("orders-")][:2] == [
        ["orders-14", "(full)", "14,000", "10", "2", "1"],
        ["orders-13", "13,000", "10", "2", "1"],
    ]
    assert ["3", "more"] in lines
    assert lines[-1] == ["it", "is\\x1b[31m", "broken"]

    now[0] += 1.0
    queue.counts.acked += 7
    queue.partitions, queue.problems = (), ()
    lines = rendered(view)
    assert ["acked", "4,007", "7"] in lines
    assert lines[-1] == ["none", "assigned"]
    assert view.summary().startswith("4,007 records acked in 3.0 s: 1,336 records/s; 5,000 delivered, ")


async def test_a_status_line_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    queue, stop = FakeQueue(), asyncio.Event()
    queue.partitions = (partition(0, lag=1_234),)
    serving = asyncio.create_task(serve(queue, handle, stop, "group g", as_json=False))
    await asyncio.sleep(0.5)
    assert capsys.readouterr().err == "working: group g\n"
    await asyncio.sleep(10.0)
    queue.counts.acked = 50
    queue.problems = ("it is slow",)
    await asyncio.sleep(10.0)
    stop.set()
    await serving
    assert queue.handle is handle
    counts = "0 nacked, 0 expired, 0 to retry topics, 0 to dead letter topics"
    rest = f"2 acquired, 10 queued, 1 waiting, {counts}, lag 1,234"
    assert capsys.readouterr().err.splitlines() == [
        f"0 acked (0/s), {rest}",
        f"50 acked (5/s), {rest}, it is slow",
        f"50 records acked in 20.5 s: 2 records/s; 0 delivered, {counts}",
    ]


def test_the_partitions_of_a_queue_that_is_closed_are_those_before_the_close() -> None:
    """Their lag is still the group's lag."""
    queue = FakeQueue()
    queue.partitions = (partition(0, 5),)
    view = QueueView(queue, lambda: 0.0)
    assert view.snapshot().statistics.lag == 5
    queue.partitions = ()
    assert view.snapshot().statistics.lag == 0, "the partitions were revoked"
    queue.partitions = (partition(0, 4),)
    view.snapshot()
    view.is_closing, queue.partitions = True, ()
    assert [view.snapshot().statistics.lag for _ in range(2)] == [4, 4]
    queue.at_close = (partition(0, 3),)
    assert view.snapshot().statistics.lag == 3, "records were acknowledged since"


def test_the_partitions_of_a_queue_that_has_failed_are_those_at_its_end() -> None:
    queue = FakeQueue()
    queue.partitions = (partition(0, 5), partition(1, 6))
    view = QueueView(queue, lambda: 0.0)
    view.snapshot()
    queue.partitions, queue.at_close = (), (partition(1, 2), partition(2, 7))
    shown = view.snapshot().statistics
    assert [(each.tp.partition, each.lag) for each in shown.partitions] == [(0, 5), (1, 2), (2, 7)]


@pytest.mark.real
async def test_what_ends_the_queue_is_raised_after_the_summary(capsys: pytest.CaptureFixture[str]) -> None:
    queue = FakeQueue()
    queue.failure = AsyncGroupError("too many dead letters")
    queue.ended.set()
    with pytest.raises(AsyncGroupError, match="too many dead letters"):
        await serve(queue, handle, asyncio.Event(), "", as_json=True)
    out, err = capsys.readouterr()
    assert json.loads(out)["final"] is True
    assert err.startswith("working: \n0 records acked in ")


@pytest.mark.real
async def test_a_closed_pipe_closes_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*_: object) -> None:
        raise BrokenPipeError

    queue = FakeQueue()
    monkeypatch.setattr("asyncgroup.cli.work_view.JSON_INTERVAL", 0.001)
    monkeypatch.setattr(sys, "stdout", type("Closed", (), {"write": write, "flush": write})())
    with pytest.raises(BrokenPipeError):
        await serve(queue, handle, asyncio.Event(), "", as_json=True)
    assert queue.ended.is_set()
