"""The manifests of deploy/kubernetes, and the settings and ports of a task in them."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.deploy.kustomize import Manifest, pod_of, render

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("demo", "production")

NAME = "app.kubernetes.io/name"
TASKS = ("backend", "batch", "client", "proxy")  # those that run lbclient
SERVERS = ("backend", "proxy")


def numbered(overlay: str, place: Path) -> Path:
    """A directory with this overlay and the component, as the guide says to make it."""
    place = place.resolve()
    # kustomize takes no absolute paths.
    there = os.path.relpath(KUBERNETES.resolve(), place)
    (place / "kustomization.yaml").write_text(
        f"resources: [{there}/overlays/{overlay}]\n"
        f"components: [{there}/components/numbered]\n"
    )
    return place


@dataclass
class Fleet:
    """What one directory renders to. `place` is for files of ConfigMaps."""

    directory: Path
    place: Path
    manifests: list[Manifest] = field(init=False)

    def __post_init__(self) -> None:
        self.manifests = render(self.directory)

    def all(self, kind: str) -> list[Manifest]:
        return [it for it in self.manifests if it["kind"] == kind]

    def one(self, kind: str, name: str) -> Manifest:
        (found,) = (it for it in self.all(kind) if it["metadata"]["name"] == name)
        return found

    def workloads(self) -> list[Manifest]:
        return [it for it in self.manifests if pod_of(it)]

    def workload(self, name: str) -> Manifest:
        (found,) = (it for it in self.workloads() if it["metadata"]["name"] == name)
        return found

    def pod(self, name: str) -> Manifest:
        """The spec of a workload's pods."""
        spec: Manifest = self.workload(name)["spec"]["template"]["spec"]
        return spec

    def container(self, name: str) -> Manifest:
        (container,) = self.pod(name)["containers"]
        found: Manifest = container
        return found

    def labels(self) -> dict[str, dict[str, str]]:
        """Of the pods of each workload, by its name."""
        return {
            it["metadata"]["name"]: it["spec"]["template"]["metadata"]["labels"]
            for it in self.workloads()
        }

    def selected(self, selector: Manifest) -> set[str]:
        """The workloads whose pods match."""
        return {name for name, own in self.labels().items() if matches(selector, own)}

    def port(self, name: str, port: int | str) -> int:
        """The number of a container's port: it may be named."""
        if isinstance(port, int):
            return port
        ports = self.container(name)["ports"]
        (number,) = (it["containerPort"] for it in ports if it["name"] == port)
        return int(number)

    def environ(self, name: str) -> dict[str, str]:
        """The container's variables, with its LBCLIENT_CONFIG in a file of `place`."""
        found = {it["name"]: _text(it) for it in self.container(name).get("env", [])}
        if "LBCLIENT_CONFIG" in found:
            found["LBCLIENT_CONFIG"] = self._file(name, Path(found["LBCLIENT_CONFIG"]))
        return found

    def _file(self, name: str, path: Path) -> str:
        """What the container finds there."""
        (volume,) = (
            it["name"]
            for it in self.container(name)["volumeMounts"]
            if Path(it["mountPath"]) == path.parent
        )
        (config,) = (
            it["configMap"]["name"]
            for it in self.pod(name)["volumes"]
            if it["name"] == volume
        )
        file = self.place / path.name
        file.write_text(self.one("ConfigMap", config)["data"][path.name])
        return str(file)


def matches(selector: Manifest, labels: dict[str, str]) -> bool:
    """An empty selector matches all, as the API has it."""
    pairs = selector.get("matchLabels", {}).items()
    expressions = selector.get("matchExpressions", [])
    assert selector.keys() <= {"matchExpressions", "matchLabels"}, selector
    assert all(it["operator"] == "In" for it in expressions), selector
    return all(labels.get(key) == value for key, value in pairs) and all(
        labels.get(it["key"]) in it["values"] for it in expressions
    )


def _text(variable: Manifest) -> str:
    if "value" in variable:
        return str(variable["value"])
    (source,) = variable["valueFrom"]
    return {"fieldRef": "client-7x2q", "secretKeyRef": "sixteen bytes or more"}[source]


def selectors(manifest: Any) -> Iterator[Manifest]:
    """Every label selector in a manifest, wherever it is."""
    if isinstance(manifest, list):
        for each in manifest:
            yield from selectors(each)
    elif isinstance(manifest, dict):
        if manifest.keys() & {"matchExpressions", "matchLabels"}:
            yield manifest
        for each in manifest.values():
            yield from selectors(each)
