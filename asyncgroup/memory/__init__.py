"""Memory of records that wait to be sent: `BufferMemory` of one client, a `MemoryBudget` that several share.

`pending_limits` grants both, and limits for each partition.
"""
