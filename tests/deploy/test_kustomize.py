"""What the manifests' reader makes of them is what kustomize does."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import needs
from tests.deploy import kustomize
from tests.deploy.fleet import KUBERNETES, OVERLAYS, numbered
from tests.deploy.kustomize import Manifest, merge, render

SUFFIX = "[24-9bcdfghkmt]{10}"  # kustomize's alphabet, which spells few words
OLDEST = 21  # of kubectl 1: kustomize 4, the first with components


def sorted_by_name(value: Any) -> Any:
    """Items of a list that have names, in their order: merges may put them in any."""
    if isinstance(value, dict):
        return {name: sorted_by_name(each) for name, each in value.items()}
    if isinstance(value, list):
        items = [sorted_by_name(each) for each in value]
        if all(isinstance(it, dict) and "name" in it for it in items):
            items.sort(key=lambda it: str(it["name"]))
        return items
    return value


def by_place(manifests: list[Manifest]) -> dict[str, Manifest]:
    found = {
        f"{it['kind']} {it['metadata'].get('namespace')}/{it['metadata']['name']}": it
        for it in sorted_by_name(manifests)
    }
    assert len(found) == len(manifests)
    return found


def kubectl(directory: Path) -> list[Manifest]:
    """As kubectl renders it, without the suffix of what reads lbclient.toml."""
    program = needs.found("kubectl")
    if program is None:
        needs.skip("no kubectl")
    version = subprocess.run(
        [program, "version", "--client"], capture_output=True, text=True, timeout=60
    ).stdout
    minor = re.search(r"v?1\.(\d+)", version)
    if minor is None or int(minor[1]) < OLDEST:
        needs.skip(f"no kubectl 1.{OLDEST} or newer: {version.strip()}")
    done = subprocess.run(
        [program, "kustomize", str(directory)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    plain = re.sub(
        rf"\bname: lbclient-{SUFFIX}$", "name: lbclient", done.stdout, flags=re.M
    )
    return list(kustomize.yaml.safe_load_all(plain))


@pytest.mark.parametrize(
    "name",
    [
        "base",
        "overlays/demo",
        "overlays/production",
        "prometheus-adapter",
        "../prometheus",
        "../grafana/dashboards",
    ],
)
def test_a_directory_is_rendered_as_by_kubectl(name: str) -> None:
    directory = (KUBERNETES / name).resolve()
    assert by_place(render(directory)) == by_place(kubectl(directory))


@pytest.mark.parametrize("name", OVERLAYS)
def test_a_fleet_with_numbers_is_rendered_as_by_kubectl(
    name: str, tmp_path: Path
) -> None:
    directory = numbered(name, tmp_path)
    assert by_place(render(directory)) == by_place(kubectl(directory))


def test_what_is_not_understood_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("namePrefix: a-\n")
    with pytest.raises(AssertionError, match="namePrefix"):
        render(tmp_path)


def test_items_of_a_list_are_merged_by_their_key() -> None:
    below: Manifest = {"env": [{"name": "A", "value": "1"}, {"name": "B"}]}
    merge(below, {"env": [{"name": "A", "value": "2"}, {"name": "C"}]})
    assert below == {"env": [{"name": "A", "value": "2"}, {"name": "B"}, {"name": "C"}]}


def test_a_list_whose_key_is_not_known_is_refused() -> None:
    constraint = [{"topologyKey": "zone", "maxSkew": 1}]
    with pytest.raises(KeyError, match="topologySpreadConstraints"):
        merge(
            {"topologySpreadConstraints": constraint},
            {"topologySpreadConstraints": constraint},
        )


def test_a_patch_of_what_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("kind: Thing\nmetadata: {name: one}\n")
    (tmp_path / "kustomization.yaml").write_text(
        "resources: [one.yaml]\n"
        "patches:\n"
        "- target: {kind: Thing, name: one}\n"
        "  patch: '[{op: remove, path: /spec}]'\n"
    )
    with pytest.raises(AssertionError, match="remove /spec"):
        render(tmp_path)
