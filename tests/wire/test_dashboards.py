"""What the dashboards and the alert rules ask is there, in a real Prometheus.

Each window of a rate is scaled from minutes to eight seconds: it tells as well whether
there is something to be seen.
"""

import asyncio
import json
import math
import re
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
import yaml
from prometheus_client import CollectorRegistry, start_http_server

import lbclient
from lbclient.metrics import export
from lbclient.metrics.families import FAMILIES, SAMPLES
from lbclient.server.quotas.memory_store import MemoryStore
from tests import needs
from tests.waiting import eventually
from tests.wire.prometheus import Prometheus, prometheus

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
ALERTS = Path(__file__).with_name("alerts.yml")
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))

NO_LOGIN = {
    "GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION": "true",
    "GF_AUTH_DISABLE_LOGIN_FORM": "true",
}

WINDOW = "8s"


class Query(NamedTuple):
    where: str
    text: str


def shown() -> Iterator[Query]:
    """Every query of every panel, with its variables filled in."""
    for file in DASHBOARDS:
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel["targets"]:
                text = re.sub(r"\$(job|target|instance)\b", ".*", target["expr"])
                text = text.replace("$__rate_interval", WINDOW)
                yield Query(f"{file.stem}: {panel['title']}", text)


def choices() -> Iterator[tuple[str, str, str]]:
    """Where a variable is, and the series and the label whose values it may have."""
    for file in DASHBOARDS:
        for variable in json.loads(file.read_text())["templating"]["list"][1:]:
            asked = re.fullmatch(
                r"label_values\((.*), (\w+)\)", variable["query"]["query"]
            )
            assert asked, variable
            assert variable["definition"] == asked[0]
            assert asked[2] == variable["name"]
            series = asked[1].replace("$job", ".*")
            yield f"{file.stem}: {variable['name']}", series, asked[2]


def read(file: Path) -> Any:
    return yaml.safe_load(file.read_text())


def rules() -> list[dict[str, Any]]:
    text = re.sub(r"\[\dm\]", f"[{WINDOW}]", RULES.read_text())
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def without_bound(alert: str) -> str:
    """What an alert compares, which is there also when it does not fire."""
    return re.split(r" (?:==|<|>) [\d.]+(?:\s+and on|$)", alert.strip())[0]


def test_dashboards_and_rules_ask_for_metrics_that_exist() -> None:
    texts = [*(query.text for query in shown()), *(rule["expr"] for rule in rules())]
    texts += [series for _, series, _ in choices()]
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for text in texts:
        for name in re.findall(r"\b[\w:]*(?:lbclient|grpc)_\w[\w:]*", text):
            if not name.startswith("grpc_") or name.endswith("_total"):
                assert name in SAMPLES or name in recorded, (name, text)


def test_every_metric_is_on_a_dashboard() -> None:
    texts = " ".join(query.text for query in shown())
    for family in FAMILIES:
        found = re.search(rf"\b{family.name}(_total|_bucket)?\b", texts)
        assert found, family.name


@pytest.mark.parametrize("name", ["client", "fleet"])
def test_whatever_has_a_target_is_shown_of_the_targets_that_are_chosen(
    name: str,
) -> None:
    (file,) = (one for one in DASHBOARDS if one.stem == name)
    board = json.loads(file.read_text())
    assert "target" in [one["name"] for one in board["templating"]["list"]]
    for panel in board["panels"]:
        for query in panel["targets"]:
            found = re.findall(r"\b(lbclient_\w+)(?:\{([^}]*)\})?", query["expr"])
            of_targets = [it for it in found if "target" in SAMPLES[it[0]][1]]
            for metric, chosen in of_targets:
                assert 'target=~"$target"' in chosen, (panel["title"], metric)


def test_every_dashboard_says_what_it_is_of_and_needs_no_editing() -> None:
    for file in DASHBOARDS:
        board = json.loads(file.read_text())
        assert board["uid"] == f"lbclient-{file.stem}"
        titles = [panel["title"] for panel in board["panels"]]
        assert len(set(titles)) == len(titles) >= 12
        asking = [*board["panels"], *board["templating"]["list"][1:]]
        asking += [target for panel in board["panels"] for target in panel["targets"]]
        sources = {
            (one["datasource"]["type"], one["datasource"]["uid"]) for one in asking
        }
        assert sources == {("prometheus", "${datasource}")}
        chosen = board["templating"]["list"][0]
        assert (chosen["name"], chosen["type"]) == ("datasource", "datasource")
        assert chosen["query"] == "prometheus"


def test_grafana_is_provided_with_what_the_dashboards_ask() -> None:
    """A variable for a data source starts with the default one of its type."""
    files = DEPLOY / "grafana" / "provisioning"
    (source,) = read(files / "datasources" / "lbclient.yml")["datasources"]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    services = read(DEPLOY.parent / "docker-compose.yml")["services"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in services
    (provider,) = read(files / "dashboards" / "lbclient.yml")["providers"]
    grafana = services["grafana"]
    mounts = dict(volume.split(":")[:2] for volume in grafana["volumes"])
    assert mounts["./deploy/grafana/dashboards"] == provider["options"]["path"]
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/fleet.json"
    # Without one to log in as, and with nowhere to: who looks changes nothing.
    assert grafana["environment"].items() >= NO_LOGIN.items()
    scraped = read(DEPLOY / "prometheus" / "prometheus.yml")["global"][
        "scrape_interval"
    ]
    assert source["jsonData"]["timeInterval"] == scraped


@pytest.mark.parametrize("what", ["rules", "config"])
def test_promtool_finds_no_fault(what: str) -> None:
    needs.program("promtool")
    file = {"rules": RULES, "config": DEPLOY / "prometheus" / "prometheus.yml"}[what]
    done = subprocess.run(
        ["promtool", "check", what, str(file)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_fire_when_they_are_to() -> None:
    needs.program("promtool")
    done = subprocess.run(
        ["promtool", "test", "rules", str(ALERTS)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_fires_in_a_test_of_its_own() -> None:
    cases = [case for one in read(ALERTS)["tests"] for case in one["alert_rule_test"]]
    firing = {case["alertname"] for case in cases if case.get("exp_alerts")}
    silent = {case["alertname"] for case in cases if not case.get("exp_alerts")}
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    assert firing == alerts
    assert silent == alerts


@pytest.fixture
async def asked(
    tmp_path: Path, start: Callable[..., Awaitable[Any]], search: Any
) -> AsyncIterator[Prometheus]:
    """Two servers and a channel under load, as Prometheus sees them."""
    config = lbclient.ServerConfig(
        quotas={"mail": 10.0}, quota_store=MemoryStore(), signals={"disk": lambda: 0.5}
    )

    def make(**options: Any) -> Any:
        return lbclient.server(config=config, **options)

    with ExitStack() as stack:
        ports = {}
        registries = {job: CollectorRegistry() for job in ("backend", "client")}
        for job, registry in registries.items():
            server, thread = start_http_server(0, "127.0.0.1", registry)
            stack.callback(thread.join)
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
            ports[job] = server.server_port
        tasks = [await start(make) for _ in range(2)]
        for task in tasks:
            export(task.server, registries["backend"])
        groups = [
            {"targets": [task.address], "labels": {"zone": zone}}
            for task, zone in zip(tasks, "ab", strict=True)
        ]
        names = tmp_path / "backends.json"
        names.write_text(json.dumps(groups))
        target = f"file://{names}"
        text = re.sub(r"\[\dm\]", f"[{WINDOW}]", RULES.read_text())
        running = stack.enter_context(prometheus(tmp_path, ports, text))
        # From a third zone both are as near, and zones have limits.
        client = lbclient.ChannelConfig(locality=True, zone="c")
        async with lbclient.insecure_channel(target, config=client) as channel:
            export(channel, registries["client"], backends=10)
            loading = asyncio.create_task(load(search, channel))
            yield running
            loading.cancel()
            await asyncio.wait((loading,))


async def load(search: Any, channel: grpc.aio.Channel) -> None:
    stub = search.SearchStub(channel)
    mail = (("lbclient-customer", "mail"),)
    while True:
        for text in ("", "", "", "fail"):
            with suppress(grpc.aio.AioRpcError):
                query = search.Query(text=text)
                await stub.Search(query, timeout=10, metadata=mail)
        async for _ in stub.Pages(search.Query(), timeout=10):
            pass
        await asyncio.sleep(0.05)


async def test_no_panel_no_variable_and_no_rule_is_empty(asked: Prometheus) -> None:
    def is_there(text: str) -> bool:
        return any(not math.isnan(value) for value in asked.ask(text))

    missing = list(shown())
    for rule in rules():
        name = rule.get("record") or rule["alert"]
        missing.append(Query(name, rule.get("record") or without_bound(rule["expr"])))

    def still_missing() -> list[Query]:
        return [query for query in missing if not is_there(query.text)]

    async def ask() -> None:
        nonlocal missing
        missing = await asyncio.to_thread(still_missing)

    await eventually(lambda: not missing, lambda: missing, turns=300, meanwhile=ask)
    for where, series, label in choices():  # as Grafana asks for them
        path = f"label/{label}/values"
        values = await asyncio.to_thread(asked.get, path, **{"match[]": series})
        assert values, where
    (group,) = (await asyncio.to_thread(asked.get, "rules"))["groups"]
    assert {rule["health"] for rule in group["rules"]} == {"ok"}
