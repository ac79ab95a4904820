"""The consumer group protocol (KIP-848): the coordinator assigns.

`member_state` decides what the next heartbeat says, `heartbeats` sends it, `heartbeat_errors` has the actions for error
codes. `membership` shows this as the seam of a group protocol.
"""
