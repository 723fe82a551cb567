"""Renders a directory as `kubectl kustomize` does, as far as ours need it.

Resources, components, patches of both kinds, ConfigMaps from files, labels, images and
the namespace, in kustomize's order. What else a kustomization says is refused, and so
is a list that would be merged by a key that is not in `KEYS`. A ConfigMap's name has no
suffix here. `test_manifests.py` compares this with kubectl where there is one.
"""

import re
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from tests import needs

yaml = needs.module("yaml")

Manifest = dict[str, Any]

UNDERSTOOD = {
    "apiVersion",
    "components",
    "configMapGenerator",
    "images",
    "kind",
    "labels",
    "namespace",
    "patches",
    "resources",
}

# By which a strategic merge finds the items of a list: x-kubernetes-patch-merge-key of
# the API. A list of plain values is replaced.
KEYS = {"containers": "name", "env": "name"}

CLUSTER_WIDE = {"Namespace"}


def render(directory: Path) -> list[Manifest]:
    """What `kubectl kustomize directory` prints, in another order."""
    return _apply(directory, [])


def read(file: Path) -> list[Manifest]:
    """The documents of a file: new ones each time, as patches change them."""
    return deepcopy(_parse(file.read_text()))


@cache
def _parse(text: str) -> list[Manifest]:
    return [it for it in yaml.safe_load_all(text) if it is not None]


def _apply(directory: Path, above: list[Manifest]) -> list[Manifest]:
    """A component goes by what is above it; a kustomization by its own resources."""
    (said,) = read(directory / "kustomization.yaml")
    unknown = said.keys() - UNDERSTOOD
    assert not unknown, f"{directory}: {unknown} is not understood here"
    found = above
    for name in said.get("resources", []):
        path = directory / name
        found += render(path) if path.is_dir() else read(path)
    for name in said.get("components", []):
        found = _apply(directory / name, found)
    for generator in said.get("configMapGenerator", []):
        _generate(generator, directory, found)
    for patch in said.get("patches", []):
        _patch(patch, directory, found)
    for manifest in found:
        _label(manifest, said.get("labels", []))
        _rename_images(manifest, said.get("images", []))
        if "namespace" in said:
            _move(manifest, said["namespace"])
    return found


def _generate(said: Manifest, directory: Path, found: list[Manifest]) -> None:
    unknown = said.keys() - {"behavior", "files", "name", "options"}
    assert not unknown, f"{directory}: {unknown} is not understood here"
    data = {name: (directory / name).read_text() for name in said["files"]}
    if said.get("behavior") == "merge":
        (one,) = (
            it
            for it in found
            if (it["kind"], it["metadata"]["name"]) == ("ConfigMap", said["name"])
        )
        one["data"] |= data
        return
    metadata: Manifest = {"name": said["name"]}
    if labels := said.get("options", {}).get("labels"):
        metadata["labels"] = labels
    found.append(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
    )


def _patch(said: Manifest, directory: Path, found: list[Manifest]) -> None:
    text = said["patch"] if "patch" in said else (directory / said["path"]).read_text()
    (change,) = deepcopy(_parse(text))
    for manifest in found:
        name = manifest["metadata"]["name"]
        target = said["target"]
        if not re.fullmatch(target["kind"], manifest["kind"]):
            continue
        if not re.fullmatch(target["name"], name):
            continue
        if isinstance(change, list):
            for operation in change:
                _operate(manifest, **operation)
        else:
            own = {"apiVersion", "kind", "metadata"}
            merge(manifest, {k: v for k, v in change.items() if k not in own})


def _operate(manifest: Manifest, op: str, path: str, value: object = None) -> None:
    """RFC 6902, of which it knows add, replace and remove of what is in an object."""
    *parents, last = path.removeprefix("/").split("/")
    place: Any = manifest
    for name in parents:
        place = place[int(name) if isinstance(place, list) else name]
    assert isinstance(place, dict), path
    assert (last in place) == (op != "add"), f"{op} {path}"
    if op == "remove":
        del place[last]
    else:
        assert op in ("add", "replace"), op
        place[last] = value


def merge(below: Manifest, above: Manifest) -> None:
    """A strategic merge patch."""
    for name, value in above.items():
        old = below.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            merge(old, value)
        elif isinstance(value, list) and isinstance(old, list):
            _merge_items(name, old, value)
        else:
            below[name] = deepcopy(value)


def _merge_items(name: str, below: list[Any], above: list[Any]) -> None:
    if not any(isinstance(it, dict) for it in [*below, *above]):
        below[:] = above
        return
    key = KEYS[name]
    by_key = {it[key]: it for it in below}
    assert len(by_key) == len(below), f"two of {name} have one {key}"
    for item in above:
        if item[key] in by_key:
            merge(by_key[item[key]], item)
        else:
            below.append(deepcopy(item))


def pod_of(manifest: Manifest) -> Manifest | None:
    """The template of a workload's pods."""
    found: Manifest | None = manifest.get("spec", {}).get("template")
    return found


def _label(manifest: Manifest, labels: list[Manifest]) -> None:
    for each in labels:
        assert each.keys() == {"includeTemplates", "pairs"}
        manifest["metadata"].setdefault("labels", {}).update(each["pairs"])
        if pod := pod_of(manifest):
            pod["metadata"].setdefault("labels", {}).update(each["pairs"])


def _rename_images(manifest: Manifest, images: list[Manifest]) -> None:
    pod = pod_of(manifest)
    for container in pod["spec"]["containers"] if pod else ():
        for image in images:
            if container["image"] == image["name"]:
                container["image"] = f"{image['newName']}:{image['newTag']}"
                break


def _move(manifest: Manifest, namespace: str) -> None:
    if manifest["kind"] in CLUSTER_WIDE:
        return
    manifest["metadata"]["namespace"] = namespace
    for subject in manifest.get("subjects", []):
        subject["namespace"] = namespace
