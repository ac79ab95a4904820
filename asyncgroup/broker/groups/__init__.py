"""The group coordinator of a broker, for groups with the classic protocol. It does no I/O.

- `coordinator`: entry point, one method per API; `requests` has its arguments and results, `checks` the validation.
- `membership`, `rebalance`: move a `group` through its states; `member` are its members, `groups` holds all groups.
- `offsets`: offset commits, deletion and expiration.
- `offset_store`, `records`: write groups and offsets to `__consumer_offsets`; `loaded_partition` and `replayed` are its
  content in memory.
- `interfaces`: its configuration, and what it needs from the broker; `offsets_topic` implements the latter.
"""
