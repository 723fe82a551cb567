"""examples/workers: its manifests, and the command that they start."""

from pathlib import Path
from typing import Any

import grpc
import pytest

from lbclient.cli.operate.serve import make_parser
from lbclient.config import ServerConfig
from lbclient.server.workers.worker import LATE
from tests import needs
from tests.deploy.test_manifests import VERSIONS
from tests.wire.workers_task import serving

yaml = needs.module("yaml")

EXAMPLE = Path(__file__).parents[2] / "examples" / "workers"


def manifests() -> list[Any]:
    return list(yaml.safe_load_all((EXAMPLE / "kubernetes.yaml").read_text()))


def manifest(kind: str) -> Any:
    [one] = [each for each in manifests() if each["kind"] == kind]
    return one["spec"]


def options(command: list[str]) -> Any:
    assert command[:2] == ["lbclient", "serve"]
    return make_parser().parse_args(command[2:])


@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_is_of_the_apis_schema(version: str) -> None:
    checker = needs.module("kubernetes_validate")
    for one in manifests():
        assert checker.validate(one, version, strict=True) == version


def test_the_policy_lets_clients_through_to_each_worker() -> None:
    pod = manifest("Deployment")["template"]["spec"]
    [container] = pod["containers"]
    given = options(container["command"])
    [tcp, _] = manifest("NetworkPolicy")["ingress"][0]["ports"]
    assert (tcp["port"], tcp["endPort"]) == (
        given.port,
        given.port + given.workers + 1,
    )
    assert {"name": "LBCLIENT_WORKER_PORTS", "value": "next"} in container["env"]
    assert int(container["resources"]["limits"]["cpu"]) == given.workers
    leaving = ServerConfig().lame_duck_period + LATE
    assert pod["terminationGracePeriodSeconds"] > leaving


def test_the_composed_service_is_of_two_workers() -> None:
    service = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())["services"]
    given = options(service["search"]["command"])
    assert given.workers == service["search"]["cpus"] == 2
    leaving = ServerConfig().lame_duck_period + LATE
    assert int(service["search"]["stop_grace_period"].rstrip("s")) > leaving


async def test_the_program_serves_by_workers() -> None:
    folder = f"--app-dir={EXAMPLE}"
    async with (
        serving("searching:make_server", "--port=0", folder) as task,
        grpc.aio.insecure_channel(await task.address()) as channel,
    ):
        call: Any = channel.unary_unary("/search.Search/Search")
        assert b"found" in await call(b"", timeout=20)
        assert len(task.pids()) == 2
