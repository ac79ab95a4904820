"""Compile encoding functions: from a schema and a version to Python source.

The source is one function for the whole message, with structs inline. Adjacent fixed-size fields, lengths and empty tag
sections are written by one `struct` call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from asyncgroup.wire.compiling import (
    FIXED_SIZE_FORMATS,
    MAX_STRING,
    NUMBER_FORMATS,
    SourceBuilder,
    default_expression,
    fields_in,
    is_struct,
    tagged_in,
)
from asyncgroup.wire.schema import FieldSpec, MessageSpec, StructSpec

__all__ = ["encoder_source"]


def encoder_source(spec: MessageSpec, version: int) -> str:
    """Return the source of `write(o, a)`, which passes pieces of bytes to `a`; `codec.py` lists the names it uses."""
    return str(_Encoder(spec, version).message())


class _Encoder:
    """Writes the encoding function. In it `o` is the message; `self.append` is the expression that takes bytes.

    That is `a`, and the `append` of a list inside a tagged field, whose size must be written before its bytes.
    """

    def __init__(self, spec: MessageSpec, version: int) -> None:
        self.spec = spec
        self.version = version
        self.out = SourceBuilder()
        self.flexible = version in spec.flexible
        self.append = "a"
        # fixed-size values not yet written to `out`, as (format letters, expression)
        self.pending: list[tuple[str, str]] = []

    def message(self) -> SourceBuilder:
        with self.out.block("def write(o, a):"):
            self.struct(self.spec.top, "o")
            self.flush()
            self.out.add("return")
        return self.out

    def struct(self, struct: StructSpec, source: str) -> None:
        self.refuse_unsupported(struct, source)
        for field in fields_in(struct, self.version):
            self.value(field, f"{source}.{field.attribute}")
        if self.flexible:
            self.tags(tagged_in(struct, self.version), source)

    def refuse_unsupported(self, struct: StructSpec, source: str) -> None:
        # a value in a field that the version lacks would be dropped without notice
        for field in struct.fields:
            if self.version in field.versions or field.ignorable:
                continue
            with self.out.block(f"if {self.is_not_default(field, source)}:"):
                self.out.add(f"missing({self.spec.name!r}, {field.attribute!r}, {self.version})")

    def is_not_default(self, field: FieldSpec, source: str) -> str:
        """Return the condition that a field does not have its default value."""
        name = f"{source}.{field.attribute}"
        # the shortest condition for each kind of default: it runs for each message
        default = default_expression(field, self.spec.name)
        if default == "None":
            return f"{name} is not None"
        if default == "_EMPTY":
            return f"{name} is None or {name}" if field.is_nullable else name
        if default.endswith("()"):
            parts = [self.is_not_default(part, name) for part in self.spec.structs[field.element].fields]
            return " or ".join([f"{name} is None"] * field.is_nullable + parts)
        return f"{name} != {default}"

    def write_fixed(self, letters: str, expression: str = "") -> None:
        """Write a fixed-size value, in one `struct` call with adjacent ones; `flush` before anything else is written."""
        self.pending.append((letters, expression))

    def flush(self) -> None:
        if not self.pending:
            return
        letters = "".join(part for part, _ in self.pending)
        values = ", ".join(value for _, value in self.pending if value)
        # empty tags are zeros, which need no call
        written = f"{self.out.fixed(letters, 'pack')}({values})" if values else repr(bytes(len(letters)))
        self.out.add(f"{self.append}({written})")
        self.pending = []

    def tags(self, tagged: list[FieldSpec], source: str) -> None:
        # no tagged field in this version: their count is a zero byte, written with the fields before
        if not tagged:
            self.write_fixed("x")
            return
        self.flush()
        count, written = self.out.name("n"), self.out.name("t")
        self.out.add(f"{count} = 0; {written} = []")
        for field in tagged:
            with self.out.block(f"if {self.is_not_default(field, source)}:"):
                pieces = self.out.name("q")
                self.out.add(f"{count} += 1; {pieces} = []")
                # into a list, as the size of a tagged field comes before it
                with self.appending_to(f"{pieces}.append"):
                    self.value(field, f"{source}.{field.attribute}")
                    self.flush()
                self.out.add(f"{pieces} = b''.join({pieces})")
                self.out.add(
                    f"{written} += uvarint({field.tag}), uvarint(len({pieces})), {pieces}",
                )
        self.out.add(f"{self.append}(uvarint({count})); {self.append}(b''.join({written}))")

    @contextmanager
    def appending_to(self, name: str) -> Iterator[None]:
        outer, self.append = self.append, name
        yield
        self.append = outer

    def value(self, field: FieldSpec, source: str) -> None:
        if field.is_array or field.type in ("string", "bytes", "records"):
            self.sized(field, source)
        elif is_struct(field):
            self.inner_struct(field, source)
        else:
            self.write_fixed(
                FIXED_SIZE_FORMATS[field.type], f"{source}.bytes" if field.type == "uuid" else source
            )

    def write_null_or(
        self, field: FieldSpec, value: str, marker: tuple[str, str]
    ) -> AbstractContextManager[None]:
        """Write null if `value` is None, or raise if the version does not allow it; return the block for other values."""
        with self.out.block(f"if {value} is None:"):
            if self.version not in field.nullable and field.type != "records":
                self.out.add(f"null({field.name!r}, {self.version})")
                return nullcontext()
            # both branches write what was pending before them
            pending = [*self.pending]
            self.write_fixed(*marker)
            self.flush()
        self.pending = pending
        return self.out.block("else:")

    def sized(self, field: FieldSpec, source: str) -> None:
        compact = self.version in self.spec.flexible_versions(field)
        letter = "h" if field.type == "string" else "i"
        value = self.out.name("v")
        self.out.add(f"{value} = {source}")
        with self.write_null_or(field, value, ("x", "") if compact else (letter, "-1")):
            if field.type == "string":
                self.out.add(f"{value} = {value}.encode()")
            if compact:
                self.compact_length(value, field.name if field.type == "string" else "")
            else:
                self.write_fixed(letter, f"len({value})")
                self.flush()
            if field.is_array:
                self.elements(field, value)
            else:
                self.out.add(f"{self.append}({value})")

    def compact_length(self, value: str, string: str = "") -> None:
        """Write the length plus one as a varint; a length of one byte is written together with the fields before it.

        If `string` names a string field, more than MAX_STRING bytes are an error, because no decoder accepts them.
        """
        name, pending = self.out.name("n"), [*self.pending]
        self.out.add(f"{name} = len({value}) + 1")
        with self.out.block(f"if {name} < 128:"):
            self.write_fixed("B", name)
            self.flush()
        self.pending = pending
        with self.out.block("else:"):
            self.flush()
            if string:
                with self.out.block(f"if {name} > {MAX_STRING + 1}:"):
                    self.out.add(f"too_long_a_string({string!r}, {name} - 1)")
            self.out.add(f"{self.append}(uvarint({name}))")

    def elements(self, field: FieldSpec, value: str) -> None:
        # one call for the whole array
        if field.element in NUMBER_FORMATS:
            letters = NUMBER_FORMATS[field.element]
            self.out.add(f"{self.append}(packer('{letters}', len({value}))(*{value}))")
            return
        item = self.out.name("e")
        with self.out.block(f"for {item} in {value}:"):
            if is_struct(field):
                self.struct(self.spec.structs[field.element], item)
            else:
                self.value(
                    FieldSpec(field.name, field.element, field.versions, flexible=field.flexible), item
                )
            self.flush()

    def inner_struct(self, field: FieldSpec, source: str) -> None:
        value = self.out.name("v")
        self.out.add(f"{value} = {source}")
        # the marker of a tagged struct is an unsigned varint: 0 for null (`MessageDataGenerator.generateStructReader`)
        with self.write_null_or(field, value, ("b", "0" if self.version in field.tagged else "-1")):
            if self.version in field.nullable:
                self.write_fixed("b", "1")
            self.struct(self.spec.structs[field.element], value)
            self.flush()
