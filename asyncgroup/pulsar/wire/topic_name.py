"""Names of topics: `x` is `persistent://public/default/x`, and `…-partition-3` a partition (Pulsar's `TopicName`)."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple, Self

from asyncgroup.errors import ConfigError

__all__ = ["TopicName"]

_PARTITION: Final = re.compile(r"(.*)-partition-(\d+)$", re.DOTALL)
_DOMAINS: Final = ("persistent", "non-persistent")
_PARTS_OF_LOCAL_NAME: Final = 3


class TopicName(NamedTuple):
    """A topic's name in its parts."""

    domain: str
    tenant: str
    namespace: str
    """`tenant/namespace` is what Pulsar calls a namespace; this is its second part."""
    local_name: str

    def __str__(self) -> str:
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.local_name}"

    @staticmethod
    def parse(text: str) -> TopicName:
        """Return the parts of a name in any of its forms. Raises ConfigError."""
        return _parse(text)

    @property
    def partition(self) -> int:
        """The partition's number, -1 if the name has none."""
        found = _PARTITION.match(self.local_name)
        return int(found[2]) if found and str(int(found[2])) == found[2] else -1

    @property
    def whole(self) -> Self:
        """The topic of a partition; a topic that is none is its own."""
        return (
            self if self.partition < 0 else self._replace(local_name=_PARTITION.sub(r"\1", self.local_name))
        )

    def of_partition(self, number: int) -> Self:
        """Return the name of a partition."""
        return self._replace(local_name=f"{self.local_name}-partition-{number}")


@lru_cache(4096)
def _parse(text: str) -> TopicName:
    domain, rest = text.split("://", 1) if "://" in text else (_DOMAINS[0], text)
    if domain not in _DOMAINS:
        raise ConfigError("topic", text, f"a name with one of the domains {', '.join(_DOMAINS)}")
    parts = rest.split("/", 2) if "://" in text else rest.split("/")
    if len(parts) == 1 and "://" not in text:
        parts = ["public", "default", *parts]
    if len(parts) != _PARTS_OF_LOCAL_NAME or not all(parts):
        raise ConfigError(
            f"topic {text!r}: a name is `topic`, `tenant/namespace/topic` or `persistent://tenant/namespace/topic`"
        )
    return TopicName(domain, *parts)
