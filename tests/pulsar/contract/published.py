"""The fields of Pulsar's messages as Apache Pulsar publishes them, to compare the tables of the client with.

No jar contains `PulsarApi.proto`; a Java program reads the classes that are generated from it. They do not show whether an
integer is signed (`int32` is also uint32, `int64` also uint64), and the names are in snake case where the file has camel
case (`subType`: `sub_type`, `brokerServiceUrl`: `broker_service_url`).
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from asyncgroup.java import user_cache
from asyncgroup.testing.apache_pulsar import PULSAR_VERSION, pulsar_jars
from tests.java_programs import java_command

__all__ = ["PublishedField", "published_defaults", "published_enums", "published_fields"]

SOURCE = Path(__file__).with_name("PublishedFields.java")
LIMIT = 90.0


class PublishedField(NamedTuple):
    """A field of a message.

    `kind` is `bool`, `int32`, `int64`, `double`, `string`, `bytes`, or the name of a message or enum; `label` is
    `required`, `optional` or `repeated`.
    """

    number: int
    kind: str
    label: str


def published_fields() -> dict[str, dict[str, PublishedField]]:
    """Return the fields by message and name: `published_fields()["CommandFlow"]["message_permits"]`.

    The test needs the fixture `pulsar_at_hand`. The first call of a user takes seconds.
    """
    return {
        _own_name(message): {
            name: PublishedField(values[0], _own_name(values[1]), values[2])
            for name, values in fields.items()
        }
        for message, fields in _published()["messages"].items()
    }


def _own_name(message: str) -> str:
    """Return the name of a message here: a broker's subscription is another class."""
    return "SubscriptionOfTxn" if message == "Subscription" else message


def published_defaults() -> dict[str, dict[str, object]]:
    """Return the defaults of optional numbers, texts and enums (the constant's name) by message and field."""
    return {
        _own_name(message): {name: values[3] for name, values in fields.items() if values[3] is not None}
        for message, fields in _published()["messages"].items()
    }


def published_enums() -> dict[str, dict[str, int]]:
    """Return the values of enums: `published_enums()["CommandSubscribe.SubType"]["Shared"]`."""
    return {name: dict(values) for name, values in _published()["enums"].items()}


@functools.cache
def _published() -> dict[str, dict[str, dict[str, Any]]]:
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    path = user_cache() / "interop" / f"pulsar-fields-{PULSAR_VERSION}-{digest}.json"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".") as scratch:
            made = Path(scratch) / path.name
            made.write_text(_printed())
            made.replace(path)
    found: dict[str, dict[str, dict[str, Any]]] = json.loads(path.read_text())
    return found


def _printed() -> str:
    jars = pulsar_jars()
    needed = ("pulsar-common-*", "netty-buffer-*", "netty-common-*")
    class_path = os.pathsep.join(str(jar) for name in needed for jar in sorted(jars.glob(f"*{name}.jar")))
    done = subprocess.run(
        java_command(SOURCE, class_path), capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
