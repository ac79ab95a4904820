"""Schemas of topics.

- `schema_registry`: the schemas, with their versions; `avro_compatibility`: which of them may follow one another.
"""
