"""Memory of records that wait to be sent: `BufferMemory` of one client, a `MemoryBudget` that several share.

`buffer_memory` and `memory_budget` count, `pending_limits` grants both, and limits for each partition.
"""
