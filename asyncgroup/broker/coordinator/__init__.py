"""The group coordinator, free of I/O: `coordinator` answers calls (`requests`, `checks`), `joining`, `leaving` and `rebalance`
move a `group` of `groups` through its states (`state`, `member`, `protocols`), `offsets` takes commits and lets them expire
(`expiry`).

What outlives it goes through `log_store` and `offsets_writer` into the log of `__consumer_offsets` as `records`, and comes back
from there through `replayed`; time and the log come in by `interfaces`.
"""
