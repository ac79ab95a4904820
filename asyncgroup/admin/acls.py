"""`admin.acls`: describes, creates and deletes access control lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from asyncgroup.admin.acl_values import (
    AclBinding,
    AclBindingFilter,
    AclsDeleted,
    acl_fields,
    binding_of,
    filter_fields,
)
from asyncgroup.admin.arguments import several
from asyncgroup.admin.denied import explained, needs
from asyncgroup.admin.results import AdminResults
from asyncgroup.cluster.client import ClusterClient
from asyncgroup.cluster.requests import acls as requests
from asyncgroup.cluster.requests.budget import RequestBudget
from asyncgroup.cluster.requests.results import Results

__all__ = ["AdminAcls"]


class AdminAcls:
    """Access control lists: `admin.acls`. As Kafka's `kafka-acls.sh`.

        may_read = AclBinding(ResourcePattern("TOPIC", "orders"), AccessControlEntry("User:alice", "READ"))
        (await admin.acls.create([may_read])).raise_first()

    A cluster without an authorizer (`authorizer.class.name`) answers SECURITY_DISABLED.
    """

    def __init__(self, client: ClusterClient, budget: Callable[[], RequestBudget]) -> None:
        self._client = client
        self._budget = budget

    def __repr__(self) -> str:
        return f"<AdminAcls of {self._client!r}>"

    @needs("DESCRIBE on the cluster")
    async def describe(self, wanted: AclBindingFilter | None = None) -> tuple[AclBinding, ...]:
        """Return the ACLs that match the filter, or all, sorted by resource.

        Raises ConfigError for a wrong filter, BrokerError (SECURITY_DISABLED, CLUSTER_AUTHORIZATION_FAILED), NoBrokersError.
        """
        fields = filter_fields(AclBindingFilter() if wanted is None else wanted)
        found = await requests.describe_acls(self._client, fields, retry=self._budget().retry())
        return tuple(binding_of(each) for each in sorted(found))

    @needs("ALTER on the cluster")
    async def create(self, wanted: AclBinding | Iterable[AclBinding]) -> AdminResults[AclBinding, None]:
        """Create ACLs; one that exists is a success. Raises ConfigError for wrong words and values."""
        checked = {acl_fields(each): each for each in several("ACLs", wanted)}
        created = await requests.create_acls(self._client, checked, retry=self._budget().retry())
        values = {checked[fields]: value for fields, value in created.values.items()}
        return AdminResults(Results(values, {checked[each]: error for each, error in created.errors.items()}))

    @needs("ALTER on the cluster")
    async def delete(
        self, wanted: AclBindingFilter | Iterable[AclBindingFilter]
    ) -> AdminResults[AclBindingFilter, AclsDeleted]:
        """Delete the ACLs that match each filter; `AclBindingFilter.exactly(acl)` matches one. Returns what was deleted.

        After a request of this call without a response, the ACLs that it deleted are missing in the result. Raises ConfigError for
        wrong filters.
        """
        checked = {filter_fields(each): each for each in several("filters", wanted)}
        deleted = await requests.delete_acls(self._client, checked, retry=self._budget().retry())
        values = {
            checked[fields]: AclsDeleted(
                tuple(binding_of(each) for each in sorted(matching.deleted)),
                {
                    binding_of(each): explained(error, "ALTER on the cluster")
                    for each, error in matching.errors.items()
                },
            )
            for fields, matching in deleted.values.items()
        }
        return AdminResults(Results(values, {checked[each]: error for each, error in deleted.errors.items()}))
