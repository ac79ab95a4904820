"""Transactions that have not ended.

- `transaction_coordinators`: all coordinators, and the end of a transaction in its topics and subscriptions.
- `transaction_metadata_store`: the transactions of one coordinator, and their timeouts.

What a topic has of transactions is in `topics.transaction_buffer`, what a subscription has in `subscriptions.pending_ack_handle`.
"""
