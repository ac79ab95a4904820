"""Topics to create at the start of `asyncgroup broker`: `--topic NAME:PARTITIONS[:KEY=VALUE...]`."""

from __future__ import annotations

import argparse
from typing import Final, NamedTuple

from asyncgroup.cli.common import argument, topic_name

__all__ = ["InitialTopic", "initial_topic"]

_DOMAINS: Final = ("persistent://", "non-persistent://")


class InitialTopic(NamedTuple):
    """A topic to create at the start, as given by `--topic`."""

    name: str
    partitions: int
    configs: dict[str, str]

    def __str__(self) -> str:
        return ":".join([self.name, str(self.partitions), *(f"{k}={v}" for k, v in self.configs.items())])


def initial_topic(text: str) -> InitialTopic:
    """Argument type: a topic to create."""
    # a topic's name has no colon, except after the domain of Pulsar's names; a value with one cannot be given here
    domain = next((each for each in _DOMAINS if text.startswith(each)), "")
    rest = text.removeprefix(domain)
    name, count, *settings = rest.split(":") if ":" in rest else (rest, "")
    if not (count.isascii() and count.isdecimal()) or int(count) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:PARTITIONS[:KEY=VALUE...]")
    configs = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise argparse.ArgumentTypeError(f"{setting!r} in {text!r} is not KEY=VALUE")
        configs[key] = value
    return InitialTopic(argument(topic_name)(domain + name), int(count), configs)
