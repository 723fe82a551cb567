"""What the NetworkPolicies let through, as the API defines it.

A pod that no policy selects for a direction is open in it. One that some select is open
to what one of these allows. Answers on a way that is open always pass.
"""

from tests.deploy.fleet import Fleet, matches
from tests.deploy.kustomize import Manifest

Place = str  # a workload of the fleet, or "namespace/..." of another, or "outside"


def passes(fleet: Fleet, source: Place, to: Place, protocol: str, port: int) -> bool:
    """Whether the first packet goes through, to a port of `to`."""
    sends = _is_open(fleet, "Egress", source, to, protocol, port, to)
    return sends and admits(fleet, source, to, protocol, port)


def admits(fleet: Fleet, source: Place, to: Place, protocol: str, port: int) -> bool:
    """Whether `to` would take it, if the source's own policies let it out."""
    return _is_open(fleet, "Ingress", to, source, protocol, port, to)


def _is_open(
    fleet: Fleet,
    direction: str,
    pod: Place,
    peer: Place,
    protocol: str,
    port: int,
    listener: Place,
) -> bool:
    labels = fleet.labels().get(pod)
    if labels is None:
        return True  # not ours
    policies = [
        it["spec"]
        for it in fleet.all("NetworkPolicy")
        if direction in it["spec"]["policyTypes"]
        and matches(it["spec"]["podSelector"], labels)
    ]
    return not policies or any(
        _has_peer(fleet, rule.get("from" if direction == "Ingress" else "to"), peer)
        and _has_port(fleet, rule.get("ports"), protocol, port, listener)
        for policy in policies
        for rule in policy.get(direction.lower(), [])
    )


def _has_peer(fleet: Fleet, peers: list[Manifest] | None, peer: Place) -> bool:
    if peers is None:
        return True  # anybody
    labels = fleet.labels().get(peer)
    for each in peers:
        (kind,) = each
        if kind == "podSelector" and labels is not None:
            if matches(each[kind], labels):
                return True
        elif kind == "namespaceSelector" and peer.startswith("namespace/"):
            name = peer.removeprefix("namespace/")
            if matches(each[kind], {"kubernetes.io/metadata.name": name}):
                return True
    return False


def _has_port(
    fleet: Fleet,
    ports: list[Manifest] | None,
    protocol: str,
    port: int,
    listener: Place,
) -> bool:
    if ports is None:
        return True
    for each in ports:
        if each["protocol"] != protocol:
            continue
        first = fleet.port(listener, each["port"])
        last: int = each.get("endPort", first)
        if first <= port <= last:
            return True
    return False
