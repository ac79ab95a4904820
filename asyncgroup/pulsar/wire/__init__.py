"""Pulsar's bytes <-> objects: commands, metadata, frames, batches. Nothing here does I/O."""
