"""A member stays in its group while its event loop is blocked, and leaves it if a claim does not go on.

- `heartbeat_thread` notices that the event loop is blocked, and logs where (`block_log`: once for all groups of the loop).
  `stand_in` then sends the heartbeats in that thread, and leaves the group after `max_poll_interval`; what it needs of the
  member the heartbeats publish as a `keep_alive`. Without the thread `loop_watch` notices a block when it has ended.
- `stuck_claims` finds claims without progress, on the event loop and in the thread. `silence` is the time limit of a member
  that no broker answers.
- `stalls` reports these, long joins and unknown coordinators to the log, the hook `on_member_stalled` and `errors()`.
"""
