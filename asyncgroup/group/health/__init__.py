"""The state of a member and its problems, for operators and probes.

Everything in group/ writes to the MemberHealth in `member_health`. `diagnosis` makes the value in `health` of it;
`problems` has its kinds of problems, and the table of their sentences.
"""
