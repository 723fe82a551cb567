"""Converts Kubernetes' EndpointSlices to endpoints, without any I/O.

A Service has several slices of about 100 endpoints each. A change sends a whole slice.

Kubernetes, "EndpointSlice", discovery.k8s.io/v1.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from lbclient.core.errors import ConfigError, ResolveError
from lbclient.core.model import Endpoints
from lbclient.resolvers.json_items import members
from lbclient.resolvers.listing import MAX_ENDPOINTS, Listing, join_host, ordinal

GONE = 410  # the API has forgotten the version that we asked for

# A Service with both families has every pod twice: the first of these is taken.
FAMILIES = ("IPv4", "IPv6")

MOST_PODS = 1000  # of a slice; the API: "maximum of 1000 endpoints"

# What comes of reading a document as something that it is not.
NONSENSE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


class Gone(Exception):
    """The API has forgotten the version to continue from: list again."""


class Pod(NamedTuple):
    """A serving pod. `host` is the name from its StatefulSet, or empty."""

    address: str
    zone: str
    host: str
    is_terminating: bool


class Slice(NamedTuple):
    """The parts of a slice that matter here. `ports` describes its ports in words."""

    family: str
    pods: tuple[Pod, ...]
    ports: str = ""


class Slices:
    """All slices of a Service. Raises ResolveError for data that makes no sense."""

    def __init__(self, port: str) -> None:
        self.port = port
        self._slices: dict[str, Slice] = {}
        self._listing = Listing()

    def __repr__(self) -> str:
        pods = sum(len(each.pods) for each in self._slices.values())
        return f"<{len(self._slices)} slices, {pods} pods, port {self.port}>"

    def replace(self, text: str) -> tuple[str, Endpoints]:
        """Takes a list instead of all before; returns its version and endpoints."""
        slices: dict[str, Slice] = {}
        version = ""
        try:
            for key, value in members(text):
                if key == "metadata":
                    version = value["resourceVersion"]
                elif key == "items":
                    slices[value["metadata"]["name"]] = slice_of(value, self.port)
        except NONSENSE as error:
            raise ResolveError(f"invalid EndpointSlice list: {error!r}") from error
        if not version or not isinstance(version, str):
            raise ResolveError("invalid EndpointSlice list: no resourceVersion")
        self._slices = slices
        return version, self.endpoints()

    def apply(self, lines: Iterable[bytes], version: str) -> tuple[str, Endpoints]:
        """Takes events that follow a version; returns the last one and the endpoints.

        Raises Gone when the API cannot go on from the version it was asked for.
        """
        for line in lines:
            try:
                event = json.loads(line)
                kind, value = event["type"], event["object"]
                if kind != "ERROR":
                    version = value["metadata"]["resourceVersion"]
                    self._put(kind, value)
                    self._check_size()
                    continue
                code, words = value.get("code"), value.get("message")
            except NONSENSE as error:
                raise ResolveError(f"invalid watch event: {error!r}") from error
            if code == GONE:
                raise Gone
            raise ResolveError(f"the watch ended: {code} {words}")
        return version, self.endpoints()

    def _check_size(self) -> None:
        if len(self._slices) > MAX_ENDPOINTS:
            raise ResolveError(f"more than {MAX_ENDPOINTS:,} slices")

    def _put(self, kind: str, value: Any) -> None:
        if kind in ("ADDED", "MODIFIED"):
            self._slices[value["metadata"]["name"]] = slice_of(value, self.port)
        elif kind == "DELETED":
            self._slices.pop(value["metadata"]["name"], None)

    def endpoints(self) -> Endpoints:
        slices = self._slices.values()
        for family in FAMILIES:
            chosen = [each for each in slices if each.family == family]
            pods = [pod for each in chosen for pod in each.pods]
            if pods:
                # Should two have one address, the first holds: the one that stays.
                pods.sort(key=lambda pod: pod.is_terminating)
                make = self._listing.endpoint
                try:
                    return self._listing.take(
                        make(pod.address, 1.0, pod.zone, task, pod.is_terminating)
                        for pod, task in zip(pods, tasks_of(pods), strict=True)
                    )
                except ConfigError as error:
                    raise ResolveError(f"invalid endpoint: {error}") from None
        others = sorted({each.ports for each in slices if each.ports})
        if others:
            raise ResolveError(f"no port {self.port}, but {'; '.join(others)}")
        return ()


def slice_of(value: Any, port: str) -> Slice:
    """The endpoints of an EndpointSlice that serve, at `port`: a name or a number."""
    family = value["addressType"]
    serving = [each for each in value.get("endpoints") or () if serves(each)]
    ports = value.get("ports") or ()
    number = number_of(ports, port)
    if number is None:
        words = (f"{each.get('port')} ({each.get('name')})" for each in ports)
        return Slice(family, (), ", ".join(words) if serving else "")
    if len(serving) > MOST_PODS:
        raise ValueError(f"a slice of more than {MOST_PODS:,} endpoints")
    return Slice(
        family,
        tuple(
            Pod(
                join_host(each["addresses"][0], number),
                zone_of(each),
                str(each.get("hostname") or ""),
                is_terminating(each),
            )
            for each in serving
        ),
    )


def serves(endpoint: Any) -> bool:
    """Whether calls may go there, if only for want of others.

    The API: ready "will never be true for terminating endpoints", serving is the same
    "regardless of the terminating state"; ready that is null is to be read as true, and
    serving as ready.
    """
    conditions = endpoint.get("conditions") or {}
    told = conditions.get("serving") if is_terminating(endpoint) else None
    return (conditions.get("ready") if told is None else told) is not False


def is_terminating(endpoint: Any) -> bool:
    """Null is to be read as false."""
    return bool((endpoint.get("conditions") or {}).get("terminating"))


def number_of(ports: Iterable[Any], port: str) -> int | None:
    """The number of a pod's port; None if the slice has ports, and not that one.

    >>> grpc = {"name": "grpc", "port": 50051}
    >>> number_of([grpc], "grpc"), number_of([grpc], "50051"), number_of([grpc], "80")
    (50051, 50051, None)
    """
    if port.isdecimal():
        numbers = [each.get("port") for each in ports]
        # Without a number "all ports" are meant.
        is_there = not numbers or None in numbers or int(port) in numbers
        return int(port) if is_there else None
    for each in ports:
        if each.get("name") == port:
            number = int(each["port"])
            if not 1 <= number <= 65535:
                raise ValueError(f"port {number}: want 1 to 65535")
            return number
    return None


def zone_of(endpoint: Any) -> str:
    """The zone that it shall serve, where the API gives hints, else where it is."""
    hints = (endpoint.get("hints") or {}).get("forZones") or ()
    for hint in hints:
        return str(hint["name"])
    return str(endpoint.get("zone") or "")


def tasks_of(pods: Sequence[Pod]) -> list[int | None]:
    """Their numbers, unless those who stay are of several jobs: these would clash."""
    tasks = [ordinal(pod.host) for pod in pods]
    jobs = {
        pod.host.rpartition("-")[0]: None
        for pod, task in zip(pods, tasks, strict=True)
        if task is not None and not (pod.is_terminating and not pods[0].is_terminating)
    }
    return tasks if len(jobs) == 1 else [None] * len(tasks)
