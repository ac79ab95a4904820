"""Google's protobuf with the same fields: an oracle for what is written and read here."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import pytest

pytest.importorskip("google.protobuf")

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError as ProtobufError

from asyncgroup.pulsar.wire.fields import FieldOfMessage, fields_of
from asyncgroup.pulsar.wire.message import ProtoMessage
from tests.pulsar.wire.strategies import CLASSES

__all__ = ["ProtobufError", "oracle_class", "to_oracle", "values_of"]

_Proto = descriptor_pb2.FieldDescriptorProto
_TYPES: Final = {
    "bool": _Proto.TYPE_BOOL,
    "int32": _Proto.TYPE_INT32,
    "int64": _Proto.TYPE_INT64,
    "uint32": _Proto.TYPE_UINT32,
    "uint64": _Proto.TYPE_UINT64,
    "string": _Proto.TYPE_STRING,
    "bytes": _Proto.TYPE_BYTES,
    "message": _Proto.TYPE_MESSAGE,
    "properties": _Proto.TYPE_MESSAGE,
}


@cache
def _pool(*, raw: bool) -> descriptor_pool.DescriptorPool:
    """Return the descriptors of all classes; `raw`: strings are bytes, so that those that are not UTF-8 can be compared."""
    file = descriptor_pb2.FileDescriptorProto(name="pulsar.proto", package="pulsar", syntax="proto2")
    pair = file.message_type.add(name="KeyValue")
    for number, name in enumerate(("key", "value"), 1):
        pair.field.add(name=name, number=number, label=_Proto.LABEL_REQUIRED, type=_type("string", raw=raw))
    for cls in CLASSES:
        message = file.message_type.add(name=cls.__name__)
        for field in fields_of(cls):
            _add(message, field, raw=raw)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


def _add(message: descriptor_pb2.DescriptorProto, field: FieldOfMessage, *, raw: bool) -> None:
    added = message.field.add(name=field.name, number=field.number, type=_type(field.kind, raw=raw))
    if field.repeated:
        added.label = _Proto.LABEL_REPEATED
    else:
        added.label = _Proto.LABEL_REQUIRED if field.required else _Proto.LABEL_OPTIONAL
    if field.kind == "properties":
        added.type_name = ".pulsar.KeyValue"
    elif field.message is not None:
        added.type_name = f".pulsar.{field.message.__name__}"
    elif not field.repeated and field.default is not None:
        added.default_value = str(field.default).lower()


def _type(kind: str, *, raw: bool) -> Any:
    return _Proto.TYPE_BYTES if raw and kind == "string" else _TYPES[kind]


@cache
def oracle_class(cls: type[ProtoMessage], *, raw: bool = False) -> Any:
    """Return protobuf's class with the fields of this one."""
    return message_factory.GetMessageClass(_pool(raw=raw).FindMessageTypeByName(f"pulsar.{cls.__name__}"))


def to_oracle(message: ProtoMessage) -> Any:
    """Return protobuf's message with the same values; those that are a default are left out, as they are not written."""
    return _filled(oracle_class(type(message))(), message)


def _filled(target: Any, message: ProtoMessage) -> Any:
    for field in fields_of(type(message)):
        value = getattr(message, field.name)
        if field.kind == "properties":
            for key, text in value.items():
                getattr(target, field.name).add(key=key, value=text)
        elif field.repeated and field.message is not None:
            for one in value:
                _filled(getattr(target, field.name).add(), one)
        elif field.repeated:
            getattr(target, field.name).extend(value)
        elif field.message is not None and value is not None:
            getattr(target, field.name).SetInParent()
            _filled(getattr(target, field.name), value)
        elif field.required or value != field.default:
            setattr(target, field.name, value)
    return target


def values_of(cls: type[ProtoMessage], found: Any) -> ProtoMessage:
    """Return the message with the values of protobuf's; strings may be bytes."""
    values: dict[str, Any] = {}
    for field in fields_of(cls):
        value = getattr(found, field.name)
        if field.kind == "properties":
            values[field.name] = {_text(pair.key): _text(pair.value) for pair in value}
        elif field.repeated and value:
            values[field.name] = [_value(field, one) for one in value]
        elif not field.repeated and found.HasField(field.name):
            values[field.name] = _value(field, value)
    return cls(**values)


def _value(field: FieldOfMessage, value: Any) -> Any:
    if field.message is not None:
        return values_of(field.message, value)
    return _text(value) if field.kind == "string" else value


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "surrogateescape")
