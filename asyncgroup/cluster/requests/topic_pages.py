"""Describe the partitions of topics page by page (KIP-966), at any broker.

`TopicPages` is pure: it makes the request for the next page, and merges a page into the topics.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.requests.budget import RequestBudget
from asyncgroup.cluster.requests.results import IncompleteResponse, Results
from asyncgroup.cluster.requests.routes import ToAnyNode
from asyncgroup.errors import (
    AsyncGroupError,
    BrokerError,
    ClosedError,
    NoBrokersError,
    UnsupportedVersionError,
)
from asyncgroup.wire import messages as m

__all__ = ["PAGE_SIZE", "DescribedTopic", "TopicPages", "describe_topic_pages"]

PAGE_SIZE: Final = 2000
"""Partitions in a page: the default of `partitionSizeLimitPerResponse` in Java's DescribeTopicsOptions."""

DescribedTopic: TypeAlias = "m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic"


async def describe_topic_pages(
    cluster: ClusterClient, names: Iterable[str], budget: RequestBudget, *, page_size: int = PAGE_SIZE
) -> Results[str, DescribedTopic]:
    """Return the topics that exist and the errors of the others; names in neither were answered by no broker that has the request.

    Brokers before Kafka 3.8 and those with ZooKeeper lack it; they may answer Metadata. The partitions of a topic that changes
    during the call may be of different ages, as in Java. At the deadline the names that are left have RequestTimedOut; raises it, as
    AuthenticationError, if those are all. Raises ClosedError.
    """
    pages = TopicPages(names, page_size)
    target = ToAnyNode(cluster)
    while pages.left:
        try:
            page = await budget.limit(
                target.request(m.DescribeTopicPartitionsRequest, lambda _: pages.request()),
                "DescribeTopicPartitions",
            )
        except (UnsupportedVersionError, NoBrokersError):
            break  # some brokers may lack the request while the others do not answer
        except ClosedError:
            raise
        except AsyncGroupError as error:
            if not (pages.results.values or pages.results.errors):
                raise
            pages.fail(error)
        else:
            pages.apply(page)
    return pages.results


class TopicPages:
    """What the pages have brought so far. As in Java's `handleDescribeTopicsByNamesWithDescribeTopicPartitionsApi`, finished topics are left
    out of the next request, which has a cursor only within a topic.

    Java sends the same request again after a page that finishes nothing; here the topic that does not get on has an error then.
    """

    def __init__(self, names: Iterable[str], page_size: int = PAGE_SIZE) -> None:
        self._page_size = page_size
        self._partials: dict[str, DescribedTopic] = {}
        """Topics that a page has cut: one, unless a broker does not keep to the order of the names."""
        self._restarted: set[str] = set()
        self.left: dict[str, None] = dict.fromkeys(sorted(names))
        """The topics that are not finished, in the order of the pages."""
        self.results: Results[str, DescribedTopic] = Results()
        """The finished ones."""

    def __repr__(self) -> str:
        return f"<TopicPages: {len(self.results.values)} topics, {len(self.left)} left>"

    def request(self) -> m.DescribeTopicPartitionsRequest:
        """Return the request for the next page."""
        request = m.DescribeTopicPartitionsRequest
        first, cursor = min(self._partials, default=None), None
        if first is not None:
            cursor = request.Cursor(first, len(self._partials[first].partitions))
        return request([request.TopicRequest(name) for name in self.left], self._page_size, cursor)

    def fail(self, error: AsyncGroupError) -> None:
        """Give all topics that are left this error."""
        self.results.errors |= dict.fromkeys(self.left, error)
        self.left, self._partials = {}, {}

    def apply(self, page: m.DescribeTopicPartitionsResponse) -> None:
        """Merge a page. If it finishes no topic and continues none, the topic that it is about has IncompleteResponse.

        Without such a topic all that are left have it, so that each page leaves fewer partitions or topics to ask for.
        """
        before, cut = len(self.left), page.next_cursor.topic_name if page.next_cursor is not None else None
        asked = min(self._partials, default=None)
        has_more = False
        for topic in page.topics:
            if topic.name not in self.left:
                continue  # not asked for, or the second of this name
            has_more |= self._apply_topic(topic.name, topic, is_cut=topic.name == cut)
        if len(self.left) < before or has_more:
            return
        culprits = [name for name in (asked, cut) if name in self.left][:1] or list(self.left)
        text = "the response to DescribeTopicPartitions has nothing further about "
        error = IncompleteResponse(text + ", ".join(map(repr, culprits)))
        for name in culprits:
            self._partials.pop(name, None)
            del self.left[name]
            self.results.errors[name] = error

    def _apply_topic(self, name: str, topic: DescribedTopic, *, is_cut: bool) -> bool:
        """Merge what a page has of a topic; return whether it continues the topic or begins it again."""
        partial = self._partials.pop(name, None)
        known = 0 if partial is None else len(partial.partitions)
        if topic.error_code:  # deleted since the last page, for example
            del self.left[name]
            self.results.errors[name] = BrokerError(topic.error_code, f"describing topic {name!r}")
            return False
        if partial is not None and partial.topic_id != topic.topic_id:
            # deleted and created again since the last page, possibly with fewer partitions: from its beginning
            is_first = name not in self._restarted
            self._restarted.add(name)
            return is_first
        parts = [*topic.partitions, *(() if partial is None else partial.partitions)]
        by_number = {part.partition_index: part for part in parts}
        topic.partitions = [by_number[number] for number in sorted(by_number)]
        if is_cut:
            self._partials[name] = topic
            return len(topic.partitions) > known
        del self.left[name]
        self.results.values[name] = topic
        return False
