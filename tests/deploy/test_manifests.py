"""deploy/kubernetes is sound, and fits the settings and the programs that it runs.

The schemas are of the oldest and the newest version of Kubernetes that the guide names.
What has to agree with something else is read from both.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lbclient.config import ChannelConfig, ServerConfig, settings
from lbclient.metrics.families import SAMPLES
from lbclient.resolvers import kubernetes
from tests import needs
from tests.deploy.fleet import (
    KUBERNETES,
    NAME,
    OVERLAYS,
    ROOT,
    SERVERS,
    TASKS,
    Fleet,
    numbered,
    selectors,
)
from tests.deploy.kustomize import Manifest, read, render
from tests.deploy.network import admits, passes

GUIDE = ROOT / "docs" / "kubernetes.md"
PROMETHEUS = ROOT / "deploy" / "prometheus"
ADAPTER = KUBERNETES / "prometheus-adapter"

VERSIONS = ("1.30", "1.37")  # of Kubernetes: sleep of preStop came with the first
OPERATORS = {"PodMonitor", "PrometheusRule"}  # kinds that are not Kubernetes' own

END_WITHIN = 5.0  # seconds, from the end of lame_duck_period: Python and gRPC end
DNS_CACHE = 30.0  # seconds: the ttl of cluster.local that kubeadm gives CoreDNS
ANNOTATION = 262144  # bytes: kubectl apply keeps what it applied in one of these
EPHEMERAL = (32768, 60999)  # Linux, net.ipv4.ip_local_port_range


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["plain", "numbered"])
def fleet(request: pytest.FixtureRequest, overlay: str, tmp_path: Path) -> Fleet:
    if request.param == "numbered":
        return Fleet(numbered(overlay, tmp_path), tmp_path)
    return Fleet(KUBERNETES / "overlays" / overlay, tmp_path)


@pytest.fixture
def production(tmp_path: Path) -> Fleet:
    return Fleet(KUBERNETES / "overlays" / "production", tmp_path)


# What Kubernetes itself refuses


@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_is_of_the_apis_schema(fleet: Fleet, version: str) -> None:
    checker = needs.module("kubernetes_validate")
    for manifest in [*fleet.manifests, *render(ADAPTER)]:
        if manifest["kind"] not in OPERATORS:
            assert checker.validate(manifest, version, strict=True) == version


def test_a_field_that_the_api_does_not_have_is_found(production: Fleet) -> None:
    checker = needs.module("kubernetes_validate")
    backend = production.workload("backend")
    backend["spec"]["template"]["spec"]["terminationGracePeriod"] = 45
    with pytest.raises(checker.ValidationError, match="terminationGracePeriod"):
        checker.validate(backend, VERSIONS[0], strict=True)


def test_a_copy_as_the_guide_edits_it_is_of_the_apis_schema(tmp_path: Path) -> None:
    checker = needs.module("kubernetes_validate")
    copy = tmp_path / "mine"
    shutil.copytree(KUBERNETES, copy)
    for beside in ("prometheus", "grafana"):
        (tmp_path / beside).symlink_to(ROOT / "deploy" / beside)
    guide = GUIDE.read_text().partition("## Production")[2]
    resources, backend = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    base = copy / "base" / "kustomization.yaml"
    edited, count = re.subn(r"resources:\n(- .*\n)+", resources, base.read_text())
    base.write_text(edited)
    (copy / "overlays" / "production" / "backend.yaml").write_text(backend)
    fleet = Fleet(copy / "overlays" / "production", tmp_path)
    assert count == 1
    assert {it["metadata"]["name"] for it in fleet.workloads()} == {"backend", "redis"}
    (task,) = fleet.workload("backend")["spec"]["template"]["spec"]["containers"]
    assert task["command"] == ["python3", "-m", "search.server"]
    for manifest in fleet.manifests:
        if manifest["kind"] not in OPERATORS:
            assert checker.validate(manifest, VERSIONS[0], strict=True) == VERSIONS[0]


def test_the_guide_names_the_versions() -> None:
    oldest, newest = VERSIONS
    assert f"Kubernetes {oldest} to {newest}" in GUIDE.read_text()


def test_every_object_is_in_the_overlays_namespace(fleet: Fleet) -> None:
    (namespace,) = fleet.all("Namespace")
    found = {it["metadata"].get("namespace") for it in fleet.manifests}
    assert found == {None, namespace["metadata"]["name"]}


def test_every_config_map_can_be_applied(fleet: Fleet) -> None:
    for manifest in fleet.all("ConfigMap"):
        assert sum(map(len, manifest["data"].values())) < ANNOTATION / 2


def test_the_namespace_lets_every_pod_in(fleet: Fleet) -> None:
    """Pod Security Standards, "Restricted"; Kubernetes refuses other pods there."""
    (namespace,) = fleet.all("Namespace")
    labels = namespace["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    for workload in fleet.workloads():
        pod = workload["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}


# Labels


def test_every_selector_finds_pods(fleet: Fleet) -> None:
    namespaces = {"kubernetes.io/metadata.name": "monitoring"}
    found = list(selectors(fleet.manifests))
    assert len(found) > 20
    for selector in found:
        assert fleet.selected(selector) or selector["matchLabels"] == namespaces


def test_every_workload_selects_its_own_pods(fleet: Fleet) -> None:
    for workload in fleet.workloads():
        name = workload["metadata"]["name"]
        assert fleet.selected(workload["spec"]["selector"]) == {name}
        assert fleet.labels()[name][NAME] == name
        spread = workload["spec"]["template"]["spec"].get("topologySpreadConstraints")
        for each in spread or []:
            assert fleet.selected(each["labelSelector"]) == {name}


def test_every_service_and_budget_is_of_its_own_pods(fleet: Fleet) -> None:
    for service in fleet.all("Service"):
        selector = {"matchLabels": service["spec"]["selector"]}
        assert fleet.selected(selector) == {service["metadata"]["name"]}
    for budget in fleet.all("PodDisruptionBudget"):
        selector = budget["spec"]["selector"]
        assert fleet.selected(selector) == {budget["metadata"]["name"]}
    assert {it["metadata"]["name"] for it in fleet.all("PodDisruptionBudget")} == {
        *SERVERS
    }


# Settings and ports


def test_every_variable_is_a_setting_that_is_right(fleet: Fleet) -> None:
    known = {it.variable for c in (ChannelConfig, ServerConfig) for it in settings(c)}
    for name in TASKS:
        environ = fleet.environ(name)
        ours = {it for it in environ if it.startswith("LBCLIENT_")}
        assert ours <= {*known, "LBCLIENT_CONFIG"}
        ChannelConfig.from_environment(environ)
        ServerConfig.from_environment(environ)


def test_no_service_makes_variables(fleet: Fleet) -> None:
    for workload in fleet.workloads():
        assert workload["spec"]["template"]["spec"]["enableServiceLinks"] is False


@pytest.mark.parametrize("name", SERVERS)
def test_a_pod_has_the_time_that_its_lame_duck_takes(fleet: Fleet, name: str) -> None:
    """preStop counts: Kubernetes sends SIGTERM after it, and SIGKILL after all."""
    pause = fleet.container(name)["lifecycle"]["preStop"]["sleep"]["seconds"]
    config = ServerConfig.from_environment(fleet.environ(name))
    grace = fleet.pod(name)["terminationGracePeriodSeconds"]
    assert grace >= pause + config.lame_duck_period + END_WITHIN


@pytest.mark.parametrize("name", SERVERS)
def test_all_clients_know_a_new_pod_before_an_old_one_leaves(
    fleet: Fleet, name: str
) -> None:
    intervals = [
        ChannelConfig.from_environment(fleet.environ(it)).resolve_interval
        for it in TASKS
    ]
    spec = fleet.workload(name)["spec"]
    assert spec["minReadySeconds"] >= max(intervals) + DNS_CACHE
    if "strategy" in spec:  # a StatefulSet has none: its pods leave first
        assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def listening(fleet: Fleet, name: str) -> dict[str, int]:
    """What the program of a task listens to, by its source or its command."""
    command = " ".join(fleet.container(name)["command"])
    if name == "proxy":
        found = re.search(r"--listen=\S+:(\d+) .*--metrics=(\d+)", command)
        assert found
        return {"grpc": int(found[1]), "metrics": int(found[2])}
    program = (ROOT / "examples" / command.split()[-1]).read_text()
    ports = {
        "grpc": re.findall(r"add_insecure_port\(\"0\.0\.0\.0:(\d+)\"\)", program),
        "metrics": re.findall(r"start_http_server\((\d+)\)", program),
    }
    return {kind: int(port) for kind, found in ports.items() for port in found}


def udp_port(fleet: Fleet, name: str) -> int:
    """Servers answer health checks on the port of gRPC; docs/health.md."""
    assert ServerConfig.from_environment(fleet.environ(name)).udp_health
    return listening(fleet, name)["grpc"]


@pytest.mark.parametrize("name", TASKS)
def test_the_ports_are_those_of_the_program(fleet: Fleet, name: str) -> None:
    ports = {
        (it["name"], it.get("protocol", "TCP")): it["containerPort"]
        for it in fleet.container(name)["ports"]
    }
    wanted = {(it, "TCP"): port for it, port in listening(fleet, name).items()}
    assert {it for it, _ in wanted} >= {"metrics"}
    if name in SERVERS:
        wanted["udp-health", "UDP"] = udp_port(fleet, name)
    assert ports == wanted


@pytest.mark.parametrize("name", SERVERS)
def test_the_probes_tell_a_lame_duck_from_a_dead_server(
    fleet: Fleet, name: str
) -> None:
    container, port = fleet.container(name), listening(fleet, name)["grpc"]
    assert container["startupProbe"]["grpc"] == {"port": port}
    assert container["readinessProbe"]["grpc"] == {"port": port}
    # By gRPC a lame duck would be killed, and its requests with it.
    assert container["livenessProbe"]["tcpSocket"] == {"port": port}


@pytest.mark.parametrize("name", ["batch", "client"])
def test_who_only_calls_has_no_probe(fleet: Fleet, name: str) -> None:
    probes = {"startupProbe", "readinessProbe", "livenessProbe"}
    assert not probes & fleet.container(name).keys()


def targets(fleet: Fleet) -> dict[str, str]:
    """Of each task that calls."""
    command = " ".join(fleet.container("proxy")["command"])
    return {
        "batch": fleet.environ("batch")["TARGET"],
        "client": fleet.environ("client")["TARGET"],
        "proxy": command.partition("--target=")[2].split()[0],
    }


def service_of(target: str) -> str:
    """The Service, or the workload of the same name."""
    found = re.fullmatch(r"\w+:///(\w+):\w+", target)
    assert found, target
    return found[1]


def test_every_target_is_a_headless_service_with_that_port(fleet: Fleet) -> None:
    for target in targets(fleet).values():
        name, _, port = target.partition(":///")[2].partition(":")
        service = fleet.one("Service", name)["spec"]
        assert service["clusterIP"] == "None"
        (listed,) = service["ports"]
        number = fleet.port(name, listed["targetPort"])
        assert number == listening(fleet, name)["grpc"]
        # Behind a headless Service it is the pods' port that counts.
        assert port in (listed["name"], str(number))
        assert listed["port"] == number


def test_the_quota_store_is_the_redis_that_is_there(fleet: Fleet) -> None:
    store = ServerConfig.from_environment(fleet.environ("backend")).quota_store
    found = re.fullmatch(r"redis://(\w+):(\d+)/0\?fleet=\w+", str(store))
    assert found
    (port,) = fleet.one("Service", found[1])["spec"]["ports"]
    assert port["port"] == int(found[2])
    assert fleet.port(found[1], port["targetPort"]) == int(found[2])


def test_a_backend_has_a_limit_of_cpu(fleet: Fleet) -> None:
    """Else its utilization is of all CPUs of its node, of which it can use one."""
    for name in SERVERS:
        assert "cpu" in fleet.container(name)["resources"]["limits"]


# What runs is what docker-compose.yml runs, whose containers are tested


def test_the_commands_are_those_of_the_containers_in_compose(fleet: Fleet) -> None:
    (compose,) = read(ROOT / "docker-compose.yml")
    services = compose["services"]
    for name, service in zip(TASKS, ("fast", "batch", "client", "proxy"), strict=True):
        container = fleet.container(name)
        assert container["command"] == services[service]["command"]
        variables = {it["name"] for it in container["env"]}
        assert variables >= services[service]["environment"].keys()


def test_the_demo_runs_the_images_that_compose_builds(tmp_path: Path) -> None:
    (compose,) = read(ROOT / "docker-compose.yml")
    demo = Fleet(KUBERNETES / "overlays" / "demo", tmp_path)
    assert {demo.container(it)["image"] for it in TASKS} == {
        compose["services"]["proxy"]["image"]
    }
    assert demo.container("redis")["image"] == compose["services"]["redis"]["image"]
    # They have no tag, so Kubernetes would look for newer ones.
    for workload in demo.workloads():
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        assert container["imagePullPolicy"] == "IfNotPresent"


def test_production_names_no_registry_that_exists(production: Fleet) -> None:
    for workload in production.workloads():
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        assert re.fullmatch(r"registry\.example\.com/\S+:[\d.]+", container["image"])


def test_the_image_has_the_extras_that_the_fleet_needs(fleet: Fleet) -> None:
    (found,) = re.findall(r"'\.\[([\w,]+)\]'", (ROOT / "Dockerfile").read_text())
    schemes = {target.partition(":")[0] for target in targets(fleet).values()}
    assert {*schemes, "redis"} <= set(found.split(","))


def test_the_guides_figures_are_those_of_the_demo(tmp_path: Path) -> None:
    demo = Fleet(KUBERNETES / "overlays" / "demo", tmp_path)
    compose = ROOT / "examples" / "compose"
    (cost,) = re.findall(
        r"^MEAN_COST = ([\d.]+)", (compose / "client.py").read_text(), re.M
    )
    (cores,) = re.findall(r"^CORES = (\d+)", (compose / "backend.py").read_text(), re.M)
    speed = float(demo.environ("backend")["SPEED"])
    backends = demo.workload("backend")["spec"]["replicas"]
    clients: int = demo.workload("client")["spec"]["replicas"]
    batch = int(demo.environ("batch")["RATE"])

    def work(rate: int) -> float:
        return (clients * rate + batch) * float(cost) / int(cores) / speed

    usual = int(demo.environ("client")["RATE"])
    (scaler,) = read(KUBERNETES / "components" / "autoscaling" / "autoscaler.yaml")
    target = scaler["spec"]["metrics"][0]["pods"]["target"]["averageValue"]
    said = GUIDE.read_text()
    assert f"{clients * usual + batch} calls a second of {cost} CPU seconds" in said
    assert f"about {work(usual) / backends:.2f} for all" in said
    assert f"about {work(usual) / backends / 2:.2f} |" in said
    assert f"`RATE={usual}` again" in said
    (more,) = re.findall(r"deployment/client RATE=(\d+)", said)
    assert f"goes to about {work(int(more)) / backends:.0f}." in said
    wanted = work(int(more)) / (int(target.removesuffix("m")) / 1000)
    assert f"rises to {wanted:.0f} or so" in said
    assert f"The target, {int(target.removesuffix('m')) / 1000}," in said


# Who may do what


def test_who_watches_endpoints_may_and_nobody_else_has_a_token(fleet: Fleet) -> None:
    source = Path(kubernetes.__file__).read_text()
    ((group, resource),) = re.findall(r"/apis/([\w.]+)/v1/.*/(\w+)\"", source)
    (role,) = fleet.all("Role")
    rule = {"apiGroups": [group], "resources": [resource], "verbs": ["list", "watch"]}
    assert role["rules"] == [rule]
    (binding,) = fleet.all("RoleBinding")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    (subject,) = binding["subjects"]
    account = fleet.one("ServiceAccount", subject["name"])
    assert subject["namespace"] == account["metadata"]["namespace"]

    watching = {it for it, target in targets(fleet).items() if target[:4] == "k8s:"}
    assert watching
    for workload in fleet.workloads():
        name, pod = workload["metadata"]["name"], workload["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is (name in watching)
        if name in watching:
            assert pod["serviceAccountName"] == subject["name"]


def test_the_network_lets_calls_health_and_news_through(fleet: Fleet) -> None:
    for source, target in targets(fleet).items():
        to = service_of(target)
        assert passes(fleet, source, to, "TCP", listening(fleet, to)["grpc"])
        assert passes(fleet, source, to, "UDP", udp_port(fleet, to))
        for port in EPHEMERAL:  # of the socket that has sent probes
            assert passes(fleet, to, source, "UDP", port)
    assert passes(fleet, "backend", "redis", "TCP", fleet.port("redis", "redis"))
    for name in TASKS:
        metrics = listening(fleet, name)["metrics"]
        assert passes(fleet, "namespace/monitoring", name, "TCP", metrics)
        assert passes(fleet, name, "outside", "UDP", 53)
        assert passes(fleet, name, "outside", "TCP", 53)
    assert passes(fleet, "client", "outside", "TCP", 443)


def test_the_network_lets_nothing_else_through(fleet: Fleet) -> None:
    assert not admits(fleet, "batch", "backend", "TCP", 50051)
    assert not passes(fleet, "batch", "backend", "TCP", 50051)
    assert not passes(fleet, "backend", "client", "TCP", 40000)
    assert not passes(fleet, "client", "redis", "TCP", 6379)
    assert not passes(fleet, "namespace/other", "backend", "TCP", 50051)
    assert not passes(fleet, "namespace/other", "backend", "TCP", 9464)
    assert not passes(fleet, "backend", "outside", "TCP", 443)


# Metrics


def test_prometheus_finds_the_jobs_that_the_dashboards_have(fleet: Fleet) -> None:
    (monitor,) = fleet.all("PodMonitor")
    spec = monitor["spec"]
    assert spec["jobLabel"] == NAME
    (config,) = read(PROMETHEUS / "prometheus.yml")
    assert fleet.selected(spec["selector"]) == {
        it["job_name"] for it in config["scrape_configs"]
    }
    (endpoint,) = spec["podMetricsEndpoints"]
    for name in TASKS:
        assert fleet.port(name, endpoint["port"]) == listening(fleet, name)["metrics"]


def test_the_operators_rules_are_prometheus_own(fleet: Fleet) -> None:
    (rules,) = fleet.all("PrometheusRule")
    (own,) = read(PROMETHEUS / "rules.yml")
    assert rules["spec"] == own
    found = fleet.one("ConfigMap", "lbclient-rules")["data"]
    assert found == {"rules.yml": (PROMETHEUS / "rules.yml").read_text()}


def test_every_dashboard_is_there(fleet: Fleet) -> None:
    folder = ROOT / "deploy" / "grafana" / "dashboards"
    found = fleet.one("ConfigMap", "lbclient-dashboards")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["data"] == {it.name: it.read_text() for it in folder.glob("*.json")}


def adapter_rule() -> Manifest:
    (config,) = render(ADAPTER)
    (file,) = config["data"]
    (said,) = read(ADAPTER / file)
    (rule,) = said["rules"]
    found: Manifest = rule
    return found


def test_the_autoscaler_asks_for_a_metric_that_is_there(production: Fleet) -> None:
    (scaler,) = production.all("HorizontalPodAutoscaler")
    (metric,) = scaler["spec"]["metrics"]
    name = metric["pods"]["metric"]["name"]
    rule = adapter_rule()
    assert name in SAMPLES
    assert rule["name"] == {"matches": f"^{name}$", "as": name}
    assert rule["seriesQuery"].startswith(f"{name}{{")


def test_the_adapters_query_is_one_of_prometheus(tmp_path: Path) -> None:
    query = adapter_rule()["metricsQuery"]
    said = {
        "<<.Series>>": "lbclient_server_utilization",
        "<<.LabelMatchers>>": 'namespace="a",pod=~"b|c"',
        "<<.GroupBy>>": "pod",
    }
    for word, text in said.items():
        assert word in query
        query = query.replace(word, text)
    rule = f"groups: [{{name: a, rules: [{{record: a, expr: '{query}'}}]}}]"
    (tmp_path / "rules.yml").write_text(rule)
    command = [needs.program("promtool"), "check", "rules", str(tmp_path / "rules.yml")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_the_autoscaler_has_the_backends_to_itself(kind: str, tmp_path: Path) -> None:
    directory = KUBERNETES / "overlays" / "production"
    if kind == "StatefulSet":
        directory = numbered("production", tmp_path)
    fleet = Fleet(directory, tmp_path)
    (scaler,) = fleet.all("HorizontalPodAutoscaler")
    spec = scaler["spec"]
    backend = fleet.one(kind, "backend")
    assert spec["scaleTargetRef"] == {
        "apiVersion": backend["apiVersion"],
        "kind": kind,
        "name": "backend",
    }
    assert "replicas" not in backend["spec"]
    budget = fleet.one("PodDisruptionBudget", "backend")["spec"]["maxUnavailable"]
    assert budget < spec["minReplicas"] < spec["maxReplicas"]
    config = ServerConfig.from_environment(fleet.environ("backend"))
    assert config.quota_share == 1 / spec["minReplicas"]
