"""The transactional sink: each batch of a query is written to Kafka exactly once (option `transactional.id.prefix`).

A task is the slot `s` of its batch, the number of its partition. It writes in a transaction with the transactional id
`<prefix>-<s>`, which it leaves open; the driver ends all transactions of a batch. Readers with `read_committed` see the rows
then. Kafka has no transaction over several transactional ids, so a batch can be committed in part when the driver dies; what
follows lets the repetition of the batch complete it. Spark repeats a batch with the same query id and batch id if it is in
the checkpoint's offset log and not in its commit log.

What is stored (`records`), in groups of the same cluster, because a Python sink does not know the query's checkpoint:

- the **record** of a batch, in the group `<prefix>-driver`: the transactions (producer id and epoch) that the driver has
  decided to commit, and the number of rows of each slot. It is stored before the first EndTxn. Only the last one is kept:
  Spark begins a batch when the commit of the one before has returned.
- the **batch of a slot**, in the group `<prefix>-<s>`: committed by TxnOffsetCommit in the slot's transaction, so it is
  there if and only if the slot's rows are.

The steps (`steps`):

| step | requests |
|---|---|
| task | read the record; if it has a transaction for this slot, commit that. InitProducerId: fences earlier attempts, aborts what they left open. Read the slot's batch: if it is this batch, write nothing. Otherwise write, send the offset, flush; the transaction stays open |
| commit, on the driver | read the record; commit what it has for slots without a task now. Check that all transactions are still open (DescribeTransactions). Abort what killed tasks left open in other slots (ListTransactions). Store the record. EndTxn for all |
| abort, on the driver | commit what a record of this batch has; abort the other transactions; fence the slots of failed tasks |

The order in a task matters: after InitProducerId no transaction of an earlier attempt can be committed any more, so what
the slot's batch says then is final. The transactions of a record are committed before, not aborted by InitProducerId.

Every moment at which a process can die:

| it dies | what is left | the repetition of the batch |
|---|---|---|
| task, before or after its flush | an open transaction, not in any record | the next attempt's InitProducerId aborts it |
| driver, before the record is stored | open transactions, nothing committed | all tasks write again, with any plan; transactions of slots without a task are aborted |
| driver, after the record, before the first EndTxn | open transactions that are decided | each task commits that of its slot, finds its batch, and writes nothing; with fewer tasks, the driver commits the others |
| driver, between two EndTxn | the same in part | the same: a repeated EndTxn does nothing |
| driver, after the last EndTxn, before Spark's commit log | all committed | every task finds its batch |
| either, with an outage longer than `transaction.timeout.ms` after the record | the coordinator has aborted a part | the tasks of the missing slots write again. That is correct only if each slot gets the same rows as before: another number of tasks, or of rows in a slot, is refused. If nothing was committed, any plan is right |

Rules that follow:

- Which transactions are committed is decided by (producer id, epoch), new for each attempt: rows of a dead or second
  attempt are never committed, because its message never reached the driver's record.
- If a repetition finds that the first run is complete, what it has written (it had other slots) is aborted.
- A second attempt of a task fences the first one even if Spark has accepted that one's result. Then the check before the
  record fails, or EndTxn; the query must be restarted, and repeats the batch. So `spark.speculation` should be off.
- Two queries with one prefix: a query takes a prefix over with its first batch (a new checkpoint is a new query), and the
  former one is refused at its next batch. Both at their first batch fence each other, and one of them fails.
- A driver that was only cut off and goes on may end transactions of its record beside its successor. Each slot is still
  committed once: by the old transaction before the new task's InitProducerId, or by the new one.

Limits: offsets of groups expire after `offsets.retention.minutes` (7 days) without a commit. A driver that died between
the last EndTxn and Spark's commit log, and comes back later than that, writes the batch again; so does one whose output
topic was deleted. Plans whose slots have the same number of rows in each run, but other rows, are not recognized. A batch
query (`df.write`) is one batch of a separate query, which nothing repeats: if its driver dies between two EndTxn, the next
query with the same prefix commits the rest, if the transactions are still open.

The other files: Spark calls the `writers`, `task` says which slot and batch a task has, `decisions` are functions of
what is stored, `kafka` sends the requests, and `errors` has the error of all of them.
"""
