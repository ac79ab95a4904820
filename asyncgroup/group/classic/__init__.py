"""The classic group protocol: the leader of the group assigns.

- `membership` joins the group with the requests of `join_requests`, `heartbeats` keeps it in (`heartbeat_schedule`: when).
- With cooperative assignors `cooperative_stay` joins again while the session goes on, and `withheld` has the partitions
  that wait for the leader's next assignment.
- `parked_requests` watches a join that the coordinator holds back; `returning_leader` is for a static leader that was
  restarted, which asks the group for its members (`group_members`).
"""
