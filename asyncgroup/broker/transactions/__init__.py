"""The transaction coordinator and the transaction markers (KIP-98, KIP-360, KIP-890).

`coordinator` has one method for each API, `metadata` is the state of one transactional id, `store` has all of them, and `completion`
ends transactions by markers in their partitions.
"""

from __future__ import annotations
