"""Names of topics: `x` is `persistent://public/default/x`, and `…-partition-3` a partition (Pulsar's `TopicName`)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple, Self

from asyncgroup.checks import wrong_type
from asyncgroup.errors import ConfigError
from asyncgroup.pulsar.wire.checksum import crc32c
from asyncgroup.pulsar.wire.varint import encode_text, is_encodable

__all__ = ["TopicName", "topics_hash"]

_PARTITION: Final = re.compile(r"(.*)-partition-(0|[1-9][0-9]{0,9})", re.DOTALL)
_LARGEST_PARTITION: Final = 0x7FFFFFFF
_DOMAINS: Final = ("persistent", "non-persistent")
_ENTITY: Final = re.compile(r"[-=:.\w]+", re.ASCII)
"""Names of tenants and namespaces (Pulsar's `NamedEntity`)."""
_PARTS: Final = 3


class TopicName(NamedTuple):
    """A topic's name in its parts."""

    domain: str
    tenant: str
    namespace: str
    """`tenant/namespace` is what Pulsar calls a namespace (`namespace_name`); this is its second part."""
    local_name: str

    def __str__(self) -> str:
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.local_name}"

    @staticmethod
    def parse(text: str) -> TopicName:
        """Return the parts of a name in any of its forms. Raises ConfigError."""
        if not isinstance(text, str):
            raise wrong_type("topic", text, "a string, the name of one topic")
        return _parse(text)

    @property
    def namespace_name(self) -> str:
        """The namespace with its tenant, as commands have it."""
        return f"{self.tenant}/{self.namespace}"

    @property
    def is_persistent(self) -> bool:
        """Whether its messages are stored."""
        return self.domain == _DOMAINS[0]

    @property
    def partition(self) -> int:
        """The partition's number, -1 if the name has none: `-partition-01` is part of a topic's name."""
        found = _PARTITION.fullmatch(self.local_name)
        number = int(found[2]) if found else -1
        return number if number <= _LARGEST_PARTITION else -1

    @property
    def whole(self) -> Self:
        """The topic of a partition; a topic that is none is its own."""
        if self.partition < 0:
            return self
        return self._replace(local_name=self.local_name.rpartition("-partition-")[0])

    def of_partition(self, number: int) -> Self:
        """Return the name of a partition."""
        return self._replace(local_name=f"{self.local_name}-partition-{number}")


def topics_hash(names: Iterable[str]) -> str:
    """Return the hash of a list of topics, as brokers compute it: of the sorted names, the CRC-32C in little-endian hex."""
    found = list(names)
    if "".join(found).isascii():
        found.sort()
    else:  # as Java's strings are sorted, by UTF-16
        found.sort(key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    text = ",".join(found)
    return crc32c(encode_text(text)).to_bytes(4, "little").hex()


@lru_cache(4096)
def _parse(text: str) -> TopicName:
    domain, separator, rest = text.partition("://")
    if not separator:
        domain, rest = _DOMAINS[0], text
    if domain not in _DOMAINS:
        raise ConfigError("topic", text, f"a name with one of the domains {', '.join(_DOMAINS)}")
    if not is_encodable(text):
        raise ConfigError("topic", text, "Unicode text, without lone surrogates")
    parts = rest.split("/")
    if len(parts) == 1 and not separator:
        parts = ["public", "default", *parts]
    if len(parts) > _PARTS and separator:
        raise ConfigError(
            f"topic {text!r}: `{domain}://tenant/namespace/topic` has three parts; Pulsar 4 has no names with a cluster"
        )
    if len(parts) != _PARTS or not parts[2].strip():
        raise ConfigError(
            f"topic {text!r}: a name is `topic`, `tenant/namespace/topic` or `persistent://tenant/namespace/topic`"
        )
    for part in parts[:2]:
        if not _ENTITY.fullmatch(part):
            raise ConfigError(
                f"topic {text!r}: {part!r} is no name of a tenant or namespace; they have letters, digits and `-=:._`"
            )
    return TopicName(domain, *parts)
