"""The group coordinator, free of wire and I/O: `coordinator` answers calls (`calls`), `joining` and `rebalance` move a
`group` through its states (`state`, `member`), `store` keeps what outlives it; time and storage come in by `ports`.
"""
