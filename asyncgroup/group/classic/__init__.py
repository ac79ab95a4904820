"""The classic group protocol: the leader of the group assigns.

- `membership` joins the group with the requests of `join_requests`, `heartbeats` keeps it in (`heartbeat_schedule`: when).
- With cooperative assignors `cooperative_stay` joins again while the session goes on; a leader then watches over partitions
  that wait for its next assignment.
- `parked_requests` watches a join that the coordinator holds back. `group_members` describes the members of a group, also for
  a static leader that was restarted.
"""
