"""From an entry that the broker pushes to queued messages.

- `arrivals`: from an entry to messages; `chunk_assembly` puts large values together; `rejections`: what becomes of entries without
  a message.
- `receiver_queue` has what has arrived; `permits`: how many messages the broker may push.
"""
