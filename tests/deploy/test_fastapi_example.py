"""The manifests of examples/fastapi, against the API's schemas and the programs."""

import re
import runpy
from pathlib import Path

import pytest

from lbclient.config import ServerConfig, settings
from lbclient.config.channel import ChannelConfig
from tests import needs
from tests.deploy.fleet import NAME, ROOT, Fleet
from tests.deploy.network import admits, passes
from tests.deploy.test_manifests import DNS_CACHE, END_WITHIN, EPHEMERAL, VERSIONS

EXAMPLE = ROOT / "examples" / "fastapi"
BOTH = ("catalog", "shop")


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(EXAMPLE / "kubernetes", tmp_path)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_is_of_the_apis_schema(fleet: Fleet, version: str) -> None:
    checker = needs.module("kubernetes_validate")
    for manifest in fleet.manifests:
        assert checker.validate(manifest, version, strict=True) == version


def test_every_selector_is_of_its_own_pods(fleet: Fleet) -> None:
    for kind in ("Service", "PodDisruptionBudget", "Deployment"):
        for one in fleet.all(kind):
            selector = one["spec"]["selector"]
            selector = {"matchLabels": selector} if kind == "Service" else selector
            assert fleet.selected(selector) == {one["metadata"]["name"]}
    assert {it[NAME] for it in fleet.labels().values()} == {*BOTH}


def test_every_variable_is_one_that_the_program_reads(fleet: Fleet) -> None:
    source = (EXAMPLE / "shop" / "settings.py").read_text()
    known = set(re.findall(r'_read\(\s*"(\w+)"', source))
    known |= {it.variable for c in (ChannelConfig, ServerConfig) for it in settings(c)}
    for name in BOTH:
        assert set(fleet.environ(name)) <= known


def test_the_ports_are_those_of_the_programs(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    for name, value in fleet.environ("shop").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "/nowhere")  # nor is it made
    said = runpy.run_path(str(EXAMPLE / "gunicorn.conf.py"))
    assert said["bind"] == [
        f"0.0.0.0:{fleet.port('shop', it)}" for it in ("http", "metrics")
    ]
    *_, address, metrics = fleet.container("catalog")["command"]
    assert address == f"0.0.0.0:{fleet.port('catalog', 'grpc')}"
    assert metrics == str(fleet.port("catalog", "metrics"))
    assert fleet.environ("shop")["CATALOG_TARGET"] == "dns:///catalog:50051"
    assert fleet.one("Service", "catalog")["spec"]["clusterIP"] == "None"

    pause = fleet.container("shop")["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace = fleet.pod("shop")["terminationGracePeriodSeconds"]
    assert grace >= pause + said["graceful_timeout"] + END_WITHIN


def test_a_backend_has_the_time_that_its_lame_duck_takes(fleet: Fleet) -> None:
    pause = fleet.container("catalog")["lifecycle"]["preStop"]["sleep"]["seconds"]
    config = ServerConfig.from_environment(fleet.environ("catalog"))
    grace = fleet.pod("catalog")["terminationGracePeriodSeconds"]
    assert grace >= pause + config.lame_duck_period + END_WITHIN
    interval = ChannelConfig.from_environment({}).resolve_interval
    assert fleet.workload("catalog")["spec"]["minReadySeconds"] >= interval + DNS_CACHE


def test_the_probes_ask_what_operators_are_served(fleet: Fleet) -> None:
    source = (EXAMPLE / "shop" / "operations.py").read_text()
    paths = set(re.findall(r'app\.get\("(\S+)"\)', source))
    shop = fleet.container("shop")
    asked = {
        shop[probe]["httpGet"]["path"]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    assert asked == paths
    assert shop["livenessProbe"]["httpGet"]["path"] == "/live"


def test_the_network_lets_users_calls_and_metrics_through(fleet: Fleet) -> None:
    assert passes(fleet, "outside", "shop", "TCP", 8000)
    assert not passes(fleet, "outside", "shop", "TCP", 9464)
    assert not passes(fleet, "outside", "catalog", "TCP", 50051)
    for protocol in ("TCP", "UDP"):
        assert passes(fleet, "shop", "catalog", protocol, 50051)
        assert passes(fleet, "shop", "outside", protocol, 53)
    for port in EPHEMERAL:
        assert passes(fleet, "catalog", "shop", "UDP", port)
        assert not admits(fleet, "outside", "shop", "UDP", port)
    for name in BOTH:
        assert passes(fleet, "namespace/monitoring", name, "TCP", 9464)
        assert passes(fleet, name, "namespace/monitoring", "TCP", 4318)


def test_the_image_has_what_it_copies() -> None:
    text = (EXAMPLE / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE)
    sources = [name for names in copied for name in names.split()]
    assert "examples" in sources
    allowed = (ROOT / ".dockerignore").read_text()
    for name in sources:
        assert (ROOT / name).exists(), name
        assert f"!{name.partition('/')[0]}\n" in allowed
