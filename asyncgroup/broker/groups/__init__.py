"""The group coordinator of a broker, for groups with the classic protocol. It does no I/O.

- `coordinator`: entry point, one method per API; `requests` has its arguments and results, `checks` the validation.
- `joining`, `leaving`, `rebalance`: move a `group` through its `state`s; `member` and `protocols` are its parts, `groups`
  holds all groups.
- `offsets`, `expiry`: offset commits, deletion and expiration.
- `offset_store`, `records`: write groups and offsets to `__consumer_offsets`; `loaded_partition`, `replayed` and
  `pending_offsets` are its content in memory.
- `interfaces`: its configuration, and what it needs from the broker; `offsets_topic` implements the latter.
"""
