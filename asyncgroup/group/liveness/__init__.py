"""A member stays in its group while its event loop is blocked, and leaves it if a claim does not go on.

- `heartbeat_thread` notices that the event loop is blocked, and logs where. `thread_heartbeats` then sends the heartbeats in
  that thread, and leaves the group after `max_poll_interval`; what it needs of the member is its `heartbeat_snapshot`.
- `stalls` finds claims without progress, on the event loop and in the thread, and reports them, blocks of the event loop,
  long joins and silent coordinators to the log, the hook `on_member_stalled` and `errors()`.
- `silence` is the time limit of a member that no broker answers.
"""
