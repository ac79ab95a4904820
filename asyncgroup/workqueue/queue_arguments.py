"""QueueArguments: an unknown argument of a work queue or of its policies raises ConfigError with what may be meant."""

from __future__ import annotations

from asyncgroup.named_arguments import NamedArguments

__all__ = ["QueueArguments"]


class QueueArguments(NamedArguments):
    """Base of WorkQueue and of its policies; see `NamedArguments`."""

    __slots__ = ()

    @classmethod
    def _argument_hint(cls, key: str, value: object, known: tuple[str, ...]) -> str:  # noqa: ARG003
        from asyncgroup.config.client import keys_by_class
        from asyncgroup.workqueue.foreign_names import argument_hint

        return argument_hint(key, known, keys_by_class()["ConsumerConfig"])
