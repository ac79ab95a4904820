"""The group coordinator of a broker. Only `offsets_topic` does I/O: it appends to the log.

Groups with the classic protocol:

- `coordinator`: entry point, one method per API; `requests` has its arguments and results, `checks` the validation.
- `membership`, `rebalance`: move a `group` through its states; `member` are its members, `groups` holds them.
- `offsets`: offset commits, deletion and expiration, and the deletion of groups, of either protocol.
- `offset_store`, `records`: write groups and offsets to `__consumer_offsets`; `loaded_partition` and `replayed` are its
  content in memory.
- `modern`: groups with the consumer protocol (KIP-848); `migration`: live groups change their protocol.
- `interfaces`: its configuration, and what it needs from the broker; `offsets_topic` implements the latter.
"""
