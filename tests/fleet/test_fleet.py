"""The fleet of docker-compose.yml: found, balanced, restarted in order, and scaled."""

import time
from collections.abc import Iterator

import pytest

from tests.fleet.engine import DEMO, Fleet, comes_true, docker, fleet, started
from tests.ports import free_port

JOBS = {"backend": 4, "client": 2, "batch": 1, "proxy": 1}
FAILED = 'sum(lbclient_calls_total{job=~"client|batch",code!="OK"})'
DONE = 'sum(lbclient_calls_total{job="client",code="OK"})'
UTILIZATION = 'avg_over_time(lbclient_server_utilization{job="backend"}[10s])'
REQUESTS = 'rate(lbclient_server_requests_total{job="backend",code="OK"}[6s])'


@pytest.fixture(scope="module")
def running(images: dict[str, str]) -> Iterator[Fleet]:
    with fleet(DEMO, images, free_port()) as one:
        yield one


def test_every_task_is_found_and_scraped(running: Fleet) -> None:
    def are_up() -> bool:
        return all(
            running.number(f'sum(up{{job="{job}"}})') == count
            for job, count in JOBS.items()
        )

    assert comes_true(are_up), running.ask("up")


def test_every_task_that_serves_is_healthy(running: Fleet) -> None:
    def health(container: str) -> str:
        return docker(
            "inspect", "--format", "{{.State.Health.Status}}", container
        ).stdout.strip()

    tasks = [
        container
        for service in ("fast", "slow", "proxy")
        for container in running.containers(service)
    ]
    assert len(tasks) == 5
    assert comes_true(lambda: {health(task) for task in tasks} == {"healthy"})


def test_fast_and_slow_backends_are_equally_utilized(running: Fleet) -> None:
    def is_even() -> bool:
        seen = running.ask(UTILIZATION).values()
        rates = sorted(running.ask(REQUESTS).values())
        if not len(seen) == len(rates) == 4:  # one was missed lately
            return False
        slow, slower, fast, faster = rates
        return (
            max(seen) < 1.3 * min(seen)
            and min(seen) > 0.2
            and fast + faster > 1.5 * (slow + slower)
        )

    assert comes_true(lambda: len(running.ask(REQUESTS)) == 4)
    assert comes_true(is_even), (running.ask(UTILIZATION), running.ask(REQUESTS))


def test_a_backend_that_is_told_to_leave_costs_no_call(running: Fleet) -> None:
    before, done = running.number(FAILED), running.number(DONE)
    (one, *_) = running.containers("fast")
    assert docker("kill", "--signal", "TERM", one).returncode == 0
    assert comes_true(lambda: one not in running.containers("fast"))
    ended = docker("inspect", "--format", "{{.State.ExitCode}}", one).stdout.strip()
    running.scale(fast=2, slow=2)
    assert comes_true(lambda: running.number(DONE) > done + 200)
    assert running.number(FAILED) == before, running.words("client", "batch")
    assert ended == "0"


def test_new_backends_take_their_share(running: Fleet) -> None:
    """Within 20 s of the start of the last new container: its Python, two seconds until
    names are looked up, ten of slow start, and the window of `REQUESTS` are in that."""
    assert comes_true(lambda: len(running.ask(REQUESTS)) == 4)
    old, before = set(running.ask(REQUESTS)), running.number(FAILED)
    old_tasks = running.backends()
    running.scale(fast=4, slow=4)
    new_tasks = running.backends() - old_tasks
    assert len(new_tasks) == 4
    started_at = max(map(started, new_tasks))

    def have_their_share() -> bool:
        rates = running.ask(REQUESTS)
        new = [rate for instance, rate in rates.items() if instance not in old]
        return len(new) == 4 and sum(new) > 0.4 * sum(rates.values())

    assert comes_true(have_their_share), running.ask(REQUESTS)
    assert time.time() - started_at < 20.0  # 10 s on two cores, that others used too
    assert running.number(FAILED) == before, running.words("client", "batch")
