"""The entries of a topic, in memory.

- `topic_log`: entries and their positions; `compaction`: the last value of each key.
"""
