"""Options of commands that run for long: metrics and probes on a port, and log lines as JSON."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from asyncgroup.cli.common import port

if TYPE_CHECKING:
    from asyncgroup.telemetry import ClientMetrics
    from asyncgroup.telemetry.probes import HasHealth

__all__ = ["CommandMetrics", "add_telemetry_options"]

LOOPBACK: Final = "127.0.0.1"


def add_telemetry_options(parser: argparse.ArgumentParser) -> None:
    """Add --metrics-port, --metrics-host and --log-format."""
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="log lines as text or as JSON objects, on standard error; -v also logs joins, assignments and dead letters "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--metrics-port",
        type=port,
        metavar="N",
        help="serve Prometheus metrics and probes on this port: /metrics, /live and /ready; needs prometheus_client",
    )
    parser.add_argument(
        "--metrics-host",
        metavar="HOST",
        help=f"the address to listen on; 0.0.0.0 in a container (default: {LOOPBACK})",
    )


class CommandMetrics:
    """The metrics of a command's clients, if --metrics-port is given."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._port: int | None = options.metrics_port
        self._host: str = options.metrics_host or LOOPBACK
        self._metrics: ClientMetrics | None = None
        if self._port is not None:
            from asyncgroup.telemetry import ClientMetrics

            self._metrics = ClientMetrics(partitions=True)
        elif options.metrics_host is not None:
            usage: argparse.ArgumentParser = options.usage
            usage.error("--metrics-host is for --metrics-port")

    @property
    def hooks(self) -> tuple[object, ...]:
        """The hooks of the clients."""
        return () if self._metrics is None else (self._metrics,)

    @asynccontextmanager
    async def serving(self, *clients: HasHealth) -> AsyncIterator[None]:
        """Serve metrics and the probes of these clients during the block, if that is asked for.

        Raises OSError if the port is in use, and TelemetryUnavailable if prometheus_client is not installed.
        """
        if self._port is None:
            yield
            return
        from asyncgroup.telemetry import serve_probes

        async with serve_probes(self._port, *clients, metrics=self._metrics, host=self._host):
            yield
