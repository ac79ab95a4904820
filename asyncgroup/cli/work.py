"""`asyncgroup work`: run a handler on a work queue until Ctrl-C or SIGTERM, and show the queue's statistics.

The queue is on a consumer group of Kafka, or on a subscription of Pulsar.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, Protocol

from asyncgroup.cli.client_configs import client_config
from asyncgroup.cli.common import (
    add_missing_topics,
    group_id,
    positive,
    seconds,
    seconds_or_zero,
    stop_signals,
    topic_name,
    whole,
)
from asyncgroup.cli.connection_options import add_connection_options, connection_options
from asyncgroup.cli.extras import INSTALL_RICH, has_rich
from asyncgroup.cli.handler_loading import handler_name, load_handler
from asyncgroup.cli.pulsar_options import pulsar_source_keys
from asyncgroup.cli.telemetry_options import CommandMetrics, add_telemetry_options
from asyncgroup.config import ConsumerConfig, ProducerConfig
from asyncgroup.errors import ConfigError
from asyncgroup.lifecycle import cancel_and_wait, run_until, wait_shielded
from asyncgroup.workqueue.modes import Mode
from asyncgroup.workqueue.settings import CommandLineOption, QueueSettings

if TYPE_CHECKING:
    from asyncgroup.cli.common import Commands
    from asyncgroup.cli.work_view import QueueView
    from asyncgroup.group import Health
    from asyncgroup.workqueue import QueueStatistics, WorkQueue
    from asyncgroup.workqueue.sources import Source
    from asyncgroup.workqueue.workers import DeliveryHandler

__all__ = ["add_parser"]

_DESCRIPTION: Final = (
    "Calls a coroutine function with each delivery of a work queue. When it returns, the record is acknowledged; when it "
    "raises, the record is delivered again. Shows a live table on standard error if that is a terminal and the package rich is installed, otherwise a "
    "line at the start and a status line every 10 seconds. Ctrl-C and SIGTERM give the handlers that run their time to end, commit, and leave the "
    "group."
)

CLOSING: Final = "closing: handlers that run have close_timeout (30 s) to end; Ctrl-C again cancels them"
"""Printed when handlers run at the first signal."""


def add_parser(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the command `work`."""
    parser = commands.add_parser(
        "work", parents=[common], help="run a handler on a work queue", description=_DESCRIPTION
    )
    add_connection_options(parser, reads_pulsar=True)
    parser.add_argument(
        "handler",
        type=handler_name,
        metavar="MODULE:FUNCTION",
        help="the coroutine function (delivery); the working directory is on the module search path",
    )
    parser.add_argument(
        "--group",
        type=group_id,
        help="the consumer group, or the subscription of Pulsar (default: group.id, if it is set)",
    )
    parser.add_argument(
        "--topics", required=True, type=_topics, metavar="TOPIC,TOPIC", help="one topic or several"
    )
    # an option for each setting that has one: a new setting needs no line here
    for each in fields(QueueSettings):
        if (option := each.metadata["option"]) is not None:
            _add_setting(parser, each.name, each.default, option)
    parser.add_argument(
        "--in-thread", action="store_true", help="the function is a plain function: call it in threads"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the statistics as a JSON object every second, to standard output",
    )
    add_missing_topics(parser)
    add_telemetry_options(parser)
    parser.set_defaults(run=run)


_KINDS: Final[Mapping[str, Callable[[str], Any]]] = {
    "count": positive,
    "seconds": seconds,
    "seconds or zero": seconds_or_zero,
    "count or zero": whole,
}


def _add_setting(parser: argparse.ArgumentParser, name: str, default: Any, option: CommandLineOption) -> None:
    """Add the option of a setting; one that is not given leaves the setting as it is."""
    # an enum is shown as the user writes it
    shown = option.default or getattr(default, "value", default)
    about: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": option.help}
    if option.kind == "flag":
        parser.add_argument(option.name, action="store_true", **about)
        return
    about["help"] += f" (default: {shown})"
    if option.kind == "choice":
        about["choices"] = _CHOICES[name]
    else:
        about |= {"type": _KINDS[option.kind], "metavar": option.metavar}
    parser.add_argument(option.name, **about)


_CHOICES: Final[Mapping[str, Sequence[str]]] = {
    "mode": [mode.value for mode in Mode],
    "initial_position": ("earliest", "latest"),
}


def _topics(text: str) -> list[str]:
    try:
        return [topic_name(topic.strip()) for topic in text.split(",")]
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


class RunningQueue(Protocol):
    """The part of a WorkQueue that is run and shown."""

    def run(self, handle: DeliveryHandler) -> Coroutine[Any, Any, None]:
        """Call the handler for each delivery until the queue closes."""

    async def aclose(self) -> None:
        """Close the queue."""

    def statistics(self) -> QueueStatistics:
        """Return the counts, and the records by state."""

    def health(self) -> Health:
        """Return the health of the group member."""


async def run(options: argparse.Namespace) -> int:
    """Run the handler until Ctrl-C or SIGTERM. Raises HandlerNotFound, ConfigError, ConsumerBusy, and as `WorkQueue.run`."""
    # wrong options are usage errors before the handler is imported, which may take long
    metrics = CommandMetrics(options)
    queue = _queue(options, metrics.hooks)
    handler = load_handler(options.handler, plain=options.in_thread)
    # from here on Ctrl-C ends the command in order, also while it connects
    with stop_signals() as stop:
        opening = await run_until(stop.wait(), queue.__aenter__(), "open")
        if not opening.cancelled():
            opening.result()
            # the queue was entered above, where a signal could interrupt that
            async with aclosing(queue), metrics.serving(queue):
                await serve(queue, handler, stop, _title(queue, options), as_json=options.json)
    return stop.exit_code


def _queue(options: argparse.Namespace, hooks: Sequence[object] = ()) -> WorkQueue:
    from asyncgroup.workqueue import WorkQueue

    source = _source(options, hooks)
    names = [each.name for each in fields(QueueSettings)]
    # only what was given: the others keep the defaults of the queue
    settings: Any = {name: getattr(options, name) for name in names if hasattr(options, name)}
    return WorkQueue(source, **settings)


def _source(options: argparse.Namespace, hooks: Sequence[object]) -> Source:
    from asyncgroup.workqueue import GroupSource, PulsarSource

    given = connection_options(options)
    parser: argparse.ArgumentParser = options.usage
    service_url = given.service_url
    servers = service_url or given.require_servers(parser)
    group: str | None = options.group or given.group_id
    if group is None:
        parser.error("--group is required (or group.id in -X, in --config or in ASYNCGROUP_GROUP_ID)")
    if service_url is not None:
        if options.missing_topics is not None:
            parser.error("--missing-topics is for Kafka")
        config, keys = pulsar_source_keys(given)
        return PulsarSource(
            service_url,
            group,
            options.topics,
            config=config,
            hooks=hooks,
            close_timeout=ConsumerConfig.close_timeout,  # a stop takes as long as on Kafka
            **keys,
        )
    return GroupSource(
        servers,
        group,
        options.topics,
        config=_consumer_config(options),
        producer_config=client_config(options, ProducerConfig, client_id="asyncgroup-work"),
        hooks=hooks,
    )


def _consumer_config(options: argparse.Namespace) -> ConsumerConfig:
    """Return the configuration of the group, with the defaults of a queue that has none."""
    keys = {"chunks": "assemble"}
    if options.missing_topics is not None:
        keys["missing_topics"] = options.missing_topics
    defaults = {"client_id": "asyncgroup-work", "allow_auto_create_topics": "false"}
    return client_config(options, ConsumerConfig, keys, **defaults)


def _title(queue: WorkQueue, options: argparse.Namespace) -> str:
    copies = (("retry topic", queue.retry_topic), ("dead letter topic", queue.dead_letter_topic))
    named = "".join(f", {what} {topic}" for what, topic in copies if topic is not None)
    topics = ", ".join(options.topics)
    kind = "group" if queue.config is not None else "subscription"
    return f"{kind} {queue.group_id}, {queue.mode.value}: {topics}{named}; press Ctrl-C to stop"


def _print_start(title: str) -> None:
    """Print the line that says without a terminal that the queue runs: the first status line comes 10 s later."""
    with suppress(OSError):
        print(f"working: {title}", file=sys.stderr, flush=True)


async def serve(
    queue: RunningQueue, handler: DeliveryHandler, stop: asyncio.Event, title: str, *, as_json: bool
) -> None:
    """Run the queue and show its statistics until `stop` is set, or until the queue or the output ends."""
    from asyncgroup.cli.work_view import QueueView

    view = QueueView(queue, asyncio.get_running_loop().time)
    ended = asyncio.Event()
    running = asyncio.create_task(queue.run(handler), name="run")
    showing = asyncio.create_task(_show(view, ended, title, as_json=as_json), name="show")
    stopped = asyncio.create_task(stop.wait(), name="stop")
    try:
        first: list[asyncio.Future[Any]] = [running, showing, stopped]
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        # a queue that has ended by itself is not closed: its error is raised below
        view.is_closing = not running.done()
        if view.is_closing and queue.statistics().handlers:
            with suppress(OSError):
                print(CLOSING, file=sys.stderr, flush=True)
        await _close(queue, running)
        # raises what has ended the queue; nothing after a close
        await running
    finally:
        ended.set()
        # the last table or object has the counts of the end
        await asyncio.wait([showing])
        await cancel_and_wait(running, stopped)
        with suppress(OSError):
            print(view.summary(), file=sys.stderr, flush=True)
    showing.result()  # raises BrokenPipeError if the reader of standard output has closed the pipe


async def _close(queue: RunningQueue, running: asyncio.Task[None]) -> None:
    """Close the queue; if the caller is cancelled, as by a second Ctrl-C, its handlers are also cancelled."""
    closing = asyncio.create_task(queue.aclose(), name="close")
    try:
        await asyncio.wait([closing])
    except asyncio.CancelledError:
        running.cancel()
        await wait_shielded(closing)
        raise
    closing.result()


async def _show(view: QueueView, ended: asyncio.Event, title: str, *, as_json: bool) -> None:
    from asyncgroup.cli.work_view import show_json, show_lines, show_live

    has_terminal = sys.stderr is not None and sys.stderr.isatty()
    if has_terminal and not as_json and has_rich():
        await show_live(view, ended, title)
        return
    _print_start(title)
    if has_terminal and not as_json:
        with suppress(OSError):
            print(f"for a live table: {INSTALL_RICH}", file=sys.stderr, flush=True)
    if as_json:
        await show_json(view, ended)
    else:
        await show_lines(view, ended)
