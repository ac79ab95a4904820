"""AdminServer: the requests of Pulsar's admin API that test suites of clients make.

    clusters  tenants  brokers/health  namespaces/T[/N[/POLICY]]         below `/admin/v2/`: see `namespaces`
    persistent/T/N/X/…  non-persistent/T/N/X/…                           see `topics`
    schemas/T/N/X/…                                                      see `schemas`
    /lookup/v2/topic/persistent/T/N/X                                    the address of a topic's broker
    /admin/v3/transactions/…                                             see `transactions`

A policy that the brokers do not act on is refused with 412, unless it does no harm to ignore it (see `namespaces`).
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Protocol

from asyncgroup.pulsar.wire.topic_name import TopicName
from asyncgroup.pulsar_broker.admin.http import HttpRefusal, HttpRequest, HttpServer
from asyncgroup.pulsar_broker.admin.namespaces import NamespaceRequests
from asyncgroup.pulsar_broker.admin.schemas import SchemaRequests
from asyncgroup.pulsar_broker.admin.topics import AdministeredTopics, TopicRequests
from asyncgroup.pulsar_broker.admin.transactions import TransactionStatistics
from asyncgroup.pulsar_broker.credentials import AcceptedCredentials, CredentialRefused
from asyncgroup.pulsar_broker.transactions.transaction_coordinators import TransactionCoordinators

__all__ = ["AdminServer", "Administered"]


class TopicOwner(Protocol):
    """A broker."""

    service_url_tls: str | None

    @property
    def service_url(self) -> str:
        """Its address."""
        ...

    def load(self, name: TopicName) -> None:
        """Own a topic."""
        ...


class Administered(AdministeredTopics, Protocol):
    """What the API shows and changes."""

    @property
    def coordinators(self) -> TransactionCoordinators:
        """The coordinators of transactions."""
        ...

    @property
    def credentials(self) -> AcceptedCredentials:
        """Those that requests need."""
        ...

    def owner_of(self, name: TopicName) -> TopicOwner:
        """Return the broker that owns a topic."""
        ...


class AdminServer:
    """The server; `url` is its address while it is open."""

    def __init__(self, pulsar: Administered, host: str, port: int) -> None:
        self._pulsar = pulsar
        self._http = HttpServer(self._handle, host, port)
        self._namespaces = NamespaceRequests(pulsar)
        self._topics = TopicRequests(pulsar)
        self._schemas = SchemaRequests(pulsar.namespaces)
        self._transactions = TransactionStatistics(pulsar.coordinators)

    def __repr__(self) -> str:
        return f"<AdminServer {self.url}>"

    @property
    def url(self) -> str:
        """`http://host:port`."""
        return self._http.url

    async def start(self) -> None:
        """Listen."""
        await self._http.start()

    async def stop(self) -> None:
        """Stop listening, and end the requests that are being served."""
        await self._http.stop()

    def _check_credential(self, request: HttpRequest) -> None:
        """Refuse a request without a credential that is accepted (`AuthenticationFilter`)."""
        accepted = self._pulsar.credentials
        if accepted.are_required:
            try:
                accepted.role_of_header(request.authorization, request.auth_method.strip())
            except CredentialRefused:
                raise HttpRefusal(HTTPStatus.UNAUTHORIZED, "Authentication required") from None

    def _handle(self, request: HttpRequest) -> Any:
        self._check_credential(request)
        match request.parts:
            case ["admin", "v2", "brokers", "health"]:
                return "ok"
            case ["admin", "v2", "clusters"]:
                return ["standalone"]
            case ["admin", "v2", "tenants" | "namespaces" as kind, *rest]:
                return self._namespaces.handle(request, kind, rest)
            case ["admin", "v2", "persistent" | "non-persistent" as domain, *rest]:
                return self._topics.handle(request, domain, rest)
            case ["admin", "v2", "schemas", tenant, namespace, local, *rest]:
                return self._schemas.handle(request, TopicName("persistent", tenant, namespace, local), rest)
            case ["admin", "v3", "transactions", *rest]:
                return self._transactions.handle(request, rest)
            case ["lookup", "v2", "topic", domain, tenant, namespace, local]:
                return self._lookup(TopicName.parse(f"{domain}://{tenant}/{namespace}/{local}"))
        raise HttpRefusal(HTTPStatus.NOT_FOUND, f"{request.method} {'/'.join(request.parts)} is not served")

    def _lookup(self, name: TopicName) -> dict[str, str]:
        self._pulsar.namespaces.check(name)
        owner = self._pulsar.owner_of(name)
        owner.load(name)
        # C++'s client ends its process if a member is missing
        return {
            "brokerUrl": owner.service_url,
            "brokerUrlTls": owner.service_url_tls or "",
            "httpUrl": self.url,
            "httpUrlTls": "",
            "nativeUrl": owner.service_url,
        }
