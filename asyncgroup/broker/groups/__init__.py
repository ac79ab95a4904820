"""The group coordinator of a broker. Only `store.offsets_topic` does I/O: it appends to the log.

Each line imports only from those below it:

- `coordinator`: entry point, one method per API.
- `offsets`: offset commits, deletion and expiration, and the deletion of groups, of either protocol; `migration`: live
  groups change their protocol, `conversion`: what they are in the other one.
- `store`: groups and offsets in `__consumer_offsets`, and in memory.
- `classic`: groups with the classic protocol; `consumer`: groups with the consumer protocol (KIP-848). They do not know each
  other.
- `shared`: requests and results, the configuration, and what the coordinator needs from the broker.
"""
