"""NamespaceRequests: requests for tenants and namespaces (Pulsar's `Tenants`, `Namespaces`).

    GET, PUT, POST, DELETE  tenants/T            GET  namespaces/T            GET, PUT, DELETE  namespaces/T/N
    GET  …/topics?mode=     PUT  …/unload, …/BUNDLE/unload               see `policies` for others

Policies that a broker in memory has nothing to do for, such as persistence, are kept and shown.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Protocol

from asyncgroup.pulsar_broker.admin.http import HttpRefusal, HttpRequest
from asyncgroup.pulsar_broker.admin.policies import serve_policy
from asyncgroup.pulsar_broker.topics.namespaces import Namespaces

__all__ = ["AdministeredNamespaces", "NamespaceRequests"]

_BUNDLES = {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1}


class AdministeredNamespaces(Protocol):
    """What these requests change."""

    @property
    def namespaces(self) -> Namespaces:
        """Which topics and namespaces there are."""
        ...

    def unload(self, topic: str) -> None:
        """Unload a topic, with its partitions."""
        ...

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, with its partitions."""
        ...


class NamespaceRequests:
    """What is done for each of them."""

    def __init__(self, pulsar: AdministeredNamespaces) -> None:
        self._pulsar = pulsar

    def __repr__(self) -> str:
        return f"<NamespaceRequests of {self._pulsar.namespaces!r}>"

    def handle(self, request: HttpRequest, kind: str, rest: list[str]) -> Any:
        """Return the answer to a request for a tenant or namespace."""
        namespaces = self._pulsar.namespaces
        match kind, rest:
            case "tenants", []:
                return sorted({name.partition("/")[0] for name in namespaces.names})
            case "tenants", [tenant]:
                if request.method != "GET":
                    return None  # a tenant needs no more than its namespaces
                return {"adminRoles": [], "allowedClusters": ["standalone"], "name": tenant}
            case "namespaces", [tenant]:
                return sorted(name for name in namespaces.names if name.startswith(f"{tenant}/"))
            case "namespaces", [tenant, namespace]:
                return self._namespace(request.method, f"{tenant}/{namespace}")
            case "namespaces", [tenant, namespace, policy, *more]:
                return self._policy(request, f"{tenant}/{namespace}", policy, more)
        raise HttpRefusal(HTTPStatus.NOT_FOUND, f"{request.method} {'/'.join([kind, *rest])} is not served")

    def _namespace(self, method: str, name: str) -> Any:
        namespaces = self._pulsar.namespaces
        match method:
            case "PUT":
                if name in namespaces.names:
                    raise HttpRefusal(HTTPStatus.CONFLICT, "Namespace already exists")
                namespaces.add_namespace(name)
                return None
            case "GET":
                namespaces.check_namespace(name)
                return {"replication_clusters": ["standalone"], "bundles": _BUNDLES}
            case "DELETE":
                for topic in namespaces.of_namespace(name):
                    self._pulsar.delete_topic(topic)
                namespaces.remove_namespace(name)
                return None
        raise HttpRefusal(HTTPStatus.METHOD_NOT_ALLOWED, f"{method} of a namespace is not served")

    def _policy(self, request: HttpRequest, name: str, policy: str, more: list[str]) -> Any:
        namespaces = self._pulsar.namespaces
        namespaces.check_namespace(name)
        match request.method, policy, more:
            case "GET", "topics", []:
                return self._topics(name, request.query.get("mode", "PERSISTENT"))
            case ("PUT", "unload", []) | ("PUT", _, ["unload"]):
                for topic in namespaces.of_namespace(name):
                    self._pulsar.unload(topic)
                return None
            case "GET", "bundles", []:
                return _BUNDLES
        found = serve_policy(namespaces.policies[name], request, policy)
        namespaces.policies_changed()
        return found

    def _topics(self, namespace: str, mode: str) -> list[str]:
        found = self._pulsar.namespaces.of_namespace(namespace)
        if mode == "ALL":
            return found
        wanted = "non-persistent://" if mode == "NON_PERSISTENT" else "persistent://"
        return [name for name in found if name.startswith(wanted)]
