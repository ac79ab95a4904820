"""Subscriptions: which consumer gets an entry, and what is acknowledged.

- `subscription`: the consumers that share a `cursor`, which is what they have acknowledged; `pending_ack_handle`: what they have
  acknowledged in open transactions. `subscribed_consumer`: one of them.
- `dispatch_single`: who gets an entry in Exclusive and Failover subscriptions, `dispatch_shared`: in Shared and Key_Shared ones, there by
  `consumer_rotation` and `key_selectors`.
"""
