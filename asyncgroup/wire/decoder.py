"""Compile decoding functions: from a schema and a version to Python source.

The source is one function for the whole message. Structs are built inline, without calls: an empty object is created and
its attributes are set; adjacent fixed-size fields (and the length that follows them) are read by one `struct` call.

Bounds are not checked at each read. A slice beyond the end of the buffer is short without an error, and the position is
then beyond the end, where every further read fails; `codec.decode_from` checks the final position. Every array element
takes at least one byte and positions only grow, so a malicious count ends at the end of the buffer; a count that the rest
of the buffer cannot hold is rejected before the first element is created.

An element of two bytes becomes an object of about a hundred bytes, so the number of elements in all arrays of a request or
response is limited (`MAX_ELEMENTS`).
"""

from __future__ import annotations

import struct
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from asyncgroup.wire.compiling import (
    FIXED_SIZE_FORMATS,
    MAX_STRING,
    NUMBER_FORMATS,
    SourceBuilder,
    default_expression,
    fields_in,
    is_struct,
    min_element_size,
    tagged_in,
)
from asyncgroup.wire.schema import FieldSpec, MessageSpec, StructSpec

__all__ = ["MAX_ELEMENTS", "decoder_source"]

MAX_ELEMENTS: Final = {"request": 1 << 18, "response": 1 << 22}
"""Maximum number of elements in all arrays of a message together, by its kind. Kafka has no such limits.

Requests have the lower limit because they come from untrusted clients. Responses may describe clusters with hundreds of
thousands of partitions, each of them with ten elements.
"""


def decoder_source(spec: MessageSpec, version: int) -> str:
    """Return the source of `read(b, p) -> (message, position)` for a buffer `b`; `codec.py` lists the names it uses."""
    return str(_Decoder(spec, version).message())


class _Decoder:
    """Writes the decoding function. In it `b` is the buffer, `p` the position, `q` the end of a value."""

    def __init__(self, spec: MessageSpec, version: int) -> None:
        self.spec = spec
        self.version = version
        self.out = SourceBuilder()
        self.flexible = version in spec.flexible
        self.elements_left = MAX_ELEMENTS.get(spec.kind)
        # fixed-size reads not yet written to `out`, as (format letters, target), and lines to write after them
        self.pending: list[tuple[str, str]] = []
        self.after_read: list[str] = []

    def message(self) -> SourceBuilder:
        with self.out.block("def read(b, p):"):
            if self.elements_left is not None:
                self.out.add(f"elements_left = {self.elements_left}")
            self.struct(self.spec.top, "o")
            self.flush()
            self.out.add("return o, p")
        return self.out

    def struct(self, struct_: StructSpec, target: str) -> None:
        self.out.add(f"{target} = new(C_{struct_.name})")
        in_place = fields_in(struct_, self.version)
        # `new` calls no constructor: fields that the version lacks get their defaults here
        for field in struct_.fields:
            if field not in in_place:
                self.default(field, f"{target}.{field.attribute}")
        for field in in_place:
            self.value(field, f"{target}.{field.attribute}")
        if self.flexible:
            self.tags(tagged_in(struct_, self.version), target)

    def default(self, field: FieldSpec, target: str) -> None:
        expression = default_expression(field, self.spec.name)
        if not expression.endswith("()"):
            # the shared empty value of the constructors must not get into a message, which may be changed
            self.out.add(f"{target} = {'[]' if expression == '_EMPTY' else expression}")
            return
        inner = self.out.name("o")
        self.out.add(f"{target} = {inner} = new(C_{field.element})")
        for part in self.spec.structs[field.element].fields:
            self.default(part, f"{inner}.{part.attribute}")

    def read_fixed(self, letters: str, target: str) -> None:
        """Read a fixed-size value, in one `struct` call with adjacent ones; `flush` before the target is used."""
        self.pending.append((letters, target))

    def flush(self) -> None:
        letters = "".join(part for part, _ in self.pending)
        targets = ", ".join(target for _, target in self.pending)
        # faster than a call of `struct`
        if letters == "B":
            self.out.add(f"{targets} = b[p]; p += 1")
        elif letters:
            self.out.add(f"({targets},) = {self.out.fixed(letters, 'unpack_from')}(b, p)")
            self.out.add(f"p += {struct.calcsize('>' + letters)}")
        for line in self.after_read:
            self.out.add(line)
        self.pending = []
        self.after_read = []

    def uvarint(self, stem: str, string: str = "") -> str:
        """Read an unsigned varint; if it is the compact length (plus one) of the field `string`, check MAX_STRING."""
        name = self.out.name(stem)
        self.read_fixed("B", name)
        self.flush()
        with self.out.block(f"if {name} > 127:"):
            # the first byte again, as a part of the varint
            self.out.add(f"{name}, p = read_uvarint(b, p - 1)")
            if string:
                with self.out.block(f"if {name} > {MAX_STRING + 1}:"):
                    self.out.add(f"too_long({string!r}, {name} - 1)")
        return name

    def tags(self, tagged: list[FieldSpec], target: str) -> None:
        """Read the section of tagged fields; optimized for an empty section, which is by far the most frequent."""
        count = self.out.name("n")
        self.read_fixed("B", count)
        self.flush()
        with self.out.block(f"if {count}:"):
            if not tagged:
                self.out.add("p = skip_tags(b, p - 1)")
                return
            self.out.add(f"{count}, p = read_uvarint(b, p - 1)")
            with self.out.block(f"for _ in range({count}):"):
                tag, end = self.out.name("t"), self.out.name("end")
                self.out.add(f"{tag}, p = read_uvarint(b, p)")
                self.out.add(f"{end}, p = read_uvarint(b, p); {end} += p")
                for field in tagged:
                    with self.out.block(f"if {tag} == {field.tag}:"):
                        self.value(field, f"{target}.{field.attribute}")
                        self.flush()
                        # otherwise a malicious message could have the same bytes read many times
                        with self.out.block(f"if p != {end}:"):
                            self.out.add(f"wrong_size({field.name!r})")
                self.out.add(f"p = {end}")

    def value(self, field: FieldSpec, target: str) -> None:
        if field.is_array:
            self.array(field, target)
        elif is_struct(field):
            self.inner_struct(field, target)
        elif field.type in FIXED_SIZE_FORMATS:
            self.read_fixed(FIXED_SIZE_FORMATS[field.type], target)
            if field.type == "uuid":
                self.after_read.append(f"{target} = uuid({target})")
        else:
            self.sized(field, target)

    def length(self, field: FieldSpec, target: str) -> tuple[str, str]:
        """Read a length; return two expressions: the condition that the value is not null, and the length.

        If the field is not nullable, the condition is empty, and the compiled function raises DecodeError for null.
        """
        nullable = self.version in field.nullable or field.type == "records"
        if self.version in self.spec.flexible_versions(field):
            name = self.uvarint("n", field.name if field.type == "string" else "")
            condition, expression = name, f"{name} - 1"
        else:
            name = self.out.name("n")
            self.read_fixed("h" if field.type == "string" else "i", name)
            self.flush()
            condition, expression = f"{name} >= 0", name
        if nullable:
            self.out.add(f"{target} = None")
            return condition, expression
        with self.out.block(f"if not {name}:" if condition == name else f"if {name} < 0:"):
            self.out.add(f"unexpected_null({field.name!r})")
        return "", expression

    def block_if(self, condition: str) -> AbstractContextManager[None]:
        return self.out.block(f"if {condition}:") if condition else nullcontext()

    def sized(self, field: FieldSpec, target: str) -> None:
        condition, length = self.length(field, target)
        reading = {"string": "b[p:q].decode()", "bytes": "b[p:q]", "records": "memoryview(b)[p:q]"}[
            field.type
        ]
        with self.block_if(condition):
            self.out.add(f"q = p + {length}; {target} = {reading}; p = q")

    def inner_struct(self, field: FieldSpec, target: str) -> None:
        inner = self.out.name("o")
        if self.version not in field.nullable:
            self.struct(self.spec.structs[field.element], inner)
            self.out.add(f"{target} = {inner}")
            return
        marker = self.out.name("n")
        self.read_fixed("b", marker)
        self.flush()
        self.out.add(f"{target} = None")
        # a tagged struct has an unsigned varint there: 0 for null (Kafka's `MessageDataGenerator`)
        lowest = 1 if self.version in field.tagged else 0
        with self.out.block(f"if {marker} >= {lowest}:"):
            self.struct(self.spec.structs[field.element], inner)
            self.flush()
            self.out.add(f"{target} = {inner}")

    def array(self, field: FieldSpec, target: str) -> None:
        condition, length = self.length(field, target)
        with self.block_if(condition):
            self.check_count(field, length)
            if field.element in NUMBER_FORMATS:
                letters = NUMBER_FORMATS[field.element]
                self.out.add(f"q = {length}; {target} = list(unpacker('{letters}', q)(b, p))")
                self.out.add(f"p += {struct.calcsize('>' + letters)} * q")
                return
            items, item = self.out.name("list"), self.out.name("e")
            self.out.add(f"{target} = {items} = []")
            with self.out.block(f"for _ in range({length}):"):
                self.element(field, item)
                self.flush()
                self.out.add(f"{items}.append({item})")

    def check_count(self, field: FieldSpec, length: str) -> None:
        """Reject a count that the remaining bytes cannot hold, or that exceeds MAX_ELEMENTS with the counts before it."""
        smallest = min_element_size(self.spec, field, self.version)
        if not smallest:
            raise ValueError(f"{self.spec.name}.{field.name}: elements of size 0 would allow any count")
        # a compact count is one too large, which does not matter for the limit
        count = length.removesuffix(" - 1")
        if self.elements_left is not None:
            self.out.add(f"elements_left -= {count}")
        # a short array comes to the end of the buffer soon enough
        limit = f"{count} > 64 and ({length}) * {smallest} > len(b) - p"
        with self.out.block(f"if {'' if self.elements_left is None else 'elements_left < 0 or '}{limit}:"):
            self.out.add(f"too_many({field.name!r}, {length})")

    def element(self, field: FieldSpec, item: str) -> None:
        if is_struct(field):
            self.struct(self.spec.structs[field.element], item)
        else:
            self.value(FieldSpec(field.name, field.element, field.versions, flexible=field.flexible), item)
