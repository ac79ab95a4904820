"""Groups with the classic protocol. They do no I/O.

- `classic_group`, `group_member`: a group with its state, and its members; `classic_groups` holds the groups of a node.
- `membership`: answers JoinGroup and LeaveGroup; `classic_checks` is the validation of requests.
- `rebalance`: takes a group from one generation to the next; sessions.
"""
