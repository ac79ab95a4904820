"""TopicsPattern: the topics of a namespace whose names match a regular expression (Java's `topicsPattern`).

The broker filters with the same pattern (RE2/J, or Java's `java.util.regex`) where both languages agree about it, and the client
does in any case, with Python's `re`. A pattern is compared with the name of a topic without its scheme and without the number of
a partition; all of it has to match.
"""

from __future__ import annotations

import re
from typing import Final

from asyncgroup.errors import ConfigError
from asyncgroup.pulsar.wire.enums import TopicsMode
from asyncgroup.pulsar.wire.topic_name import TopicName

__all__ = ["REGEX_MODES", "TopicsPattern"]

REGEX_MODES: Final = {each.name.lower().replace("_", "-"): each for each in TopicsMode}
"""The values of `regex_subscription_mode`, with those of the protocol."""

MAX_WATCHED: Final = 50
"""Characters of a pattern that a broker watches (`subscriptionPatternMaxLength`), unless it is configured for more."""

_SCHEME: Final = re.compile(r"(persistent|non-persistent)://")
_PYTHON_ONLY: Final = re.compile(r"\(\?[^:]|\\[AZbBGQE]|[*+?}]\+|[^\x00-\x7f]|&&|\[\[")
"""Syntax that Java's expressions do not have, or read otherwise."""
_NAME: Final = "tenant/namespace/pattern, whose first two parts are no patterns, or a pattern of topics in public/default"


class TopicsPattern:
    """A compiled pattern, and whether topics that are persistent, not persistent, or all are meant."""

    def __init__(self, pattern: re.Pattern[str], mode: str = "persistent") -> None:
        """Raises ConfigError for a pattern of bytes, and one without a namespace."""
        if not isinstance(pattern.pattern, str):
            raise ConfigError("topic", pattern, "a pattern of str")
        self.mode = REGEX_MODES[mode]
        scheme = _SCHEME.match(pattern.pattern)
        if scheme is not None and scheme[1] != "persistent" and self.mode is TopicsMode.PERSISTENT:
            raise ConfigError(
                "regex_subscription_mode", mode, "'non-persistent' or 'all' for a pattern of such topics"
            )
        text = pattern.pattern[0 if scheme is None else scheme.end() :]
        parts = text.split("/", 2)
        if len(parts) == 1 and scheme is None:
            text = f"public/default/{text if '|' not in text else f'(?:{text})'}"
            parts = text.split("/", 2)
        if len(parts) != 3:
            raise ConfigError("topic", pattern.pattern, _NAME)
        try:
            self.namespace = TopicName.parse("/".join([*parts[:2], "x"])).namespace_name
            """Of the topics, `tenant/namespace`."""
        except ConfigError:
            raise ConfigError("topic", pattern.pattern, _NAME) from None
        self.text = text
        """The pattern of names without scheme."""
        self._pattern = re.compile(text, pattern.flags)
        is_shared = pattern.flags == re.UNICODE and _PYTHON_ONLY.search(text) is None
        self.broker_text = text if is_shared else None
        """What the broker filters by; None lets it list all topics of the namespace."""

    def __repr__(self) -> str:
        return f"<TopicsPattern {self.text!r}, {self.mode.name}>"

    def __str__(self) -> str:
        return self.text

    @property
    def is_watchable(self) -> bool:
        """Whether a broker can send the topics that are created and deleted: persistent ones, by a short pattern."""
        text = self.broker_text
        return self.mode is TopicsMode.PERSISTENT and text is not None and len(text) <= MAX_WATCHED

    def matches(self, name: TopicName) -> bool:
        """Whether it matches the topic of a partition, or a topic without any."""
        whole = name.whole
        return self._pattern.fullmatch(f"{whole.namespace_name}/{whole.local_name}") is not None
