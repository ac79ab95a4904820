"""SequenceIds: the numbers of a producer's messages, by which a broker with deduplication recognizes what it has.

A broker judges a batch as a whole, by its first and its last number. A message that may be a duplicate is therefore never in
a batch with others: its number is not above the largest one that was pushed before.
"""

from __future__ import annotations

__all__ = ["SequenceIds"]


class SequenceIds:
    """The next number, and the largest ones that were pushed and stored.

    `initial` is the last number of an earlier producer, and the first message gets the next one; with None the broker's last
    number decides (Java's `initialSequenceId`).
    """

    def __init__(self, initial: int | None = None) -> None:
        start = -1 if initial is None else initial
        self.last_pushed = start
        self.last_stored = start
        """The largest number with a receipt, -1 before the first one (Java's `lastSequenceId`)."""
        self.next = start + 1
        """The number of the next message that the caller does not number."""
        self._is_fixed = initial is not None  # the counter does not follow the broker's number

    def __repr__(self) -> str:
        return f"<SequenceIds: next {self.next}, pushed {self.last_pushed}, stored {self.last_stored}>"

    def register(self, last: int) -> None:
        """The broker has stored messages of this producer up to `last`; -1 for none, or without deduplication.

        What it has is pushed, so that a duplicate that the caller numbers goes alone from the beginning. The counter follows
        before the first message only: after a reconnect, messages that are pending have higher numbers.
        """
        self.last_pushed = max(self.last_pushed, last)
        if not self._is_fixed:
            self.next = last + 1
            self.last_stored = last
            self._is_fixed = True

    def assign(self, given: int | None) -> tuple[int, bool]:
        """Return the number of a message, and whether the message may be a duplicate; it counts as pushed.

        Numbers of the caller are kept, and the counter goes on after the largest of them.
        """
        self._is_fixed = True
        if given is None:
            number = self.next
            self.next = number + 1
        else:
            number = given
            if number >= self.next:
                self.next = number + 1
        if number <= self.last_pushed:
            return number, True
        self.last_pushed = number
        return number, False

    def store(self, number: int) -> None:
        """A message with this number has its receipt."""
        self.last_stored = max(self.last_stored, number)
