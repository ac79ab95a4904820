"""The consumer group protocol (KIP-848): the coordinator assigns.

`member_state` decides what the next heartbeat says, `heartbeats` sends it, `heartbeat_errors` has the actions for error
codes, `group_configs` reads the group's settings at the broker. `membership` shows this as the seam of a group protocol.
"""
