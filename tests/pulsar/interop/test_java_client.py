"""Programs with Pulsar's Java client, as the tests run them."""

from __future__ import annotations

import subprocess
import uuid
from pathlib import Path

import pulsar
import pytest

from tests.apache_pulsar import RunningPulsar
from tests.pulsar.java_client import pulsar_java_command

pytestmark = pytest.mark.full


def test_the_java_client_and_the_c_plus_plus_client_read_from_each_other(
    apache_pulsar: RunningPulsar,
) -> None:
    to_java, from_java = (f"{name}-{uuid.uuid4().hex[:12]}" for name in ("to-java", "from-java"))
    command = pulsar_java_command(Path(__file__).with_name("Exchange.java"))
    client = pulsar.Client(apache_pulsar.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        client.create_producer(to_java).send(b"ping")
        done = subprocess.run(
            [*command, apache_pulsar.service_url, from_java, "pong", to_java],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "ping\n"), done.stderr
        consumer = client.subscribe(from_java, "s", initial_position=pulsar.InitialPosition.Earliest)
        assert consumer.receive(60_000).data() == b"pong"
    finally:
        client.close()
