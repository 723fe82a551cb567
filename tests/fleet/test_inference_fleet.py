"""The fleet of examples/inference: streams leave an engine, and panels have data."""

import json
from collections.abc import Iterator

import pytest

from tests.fleet.engine import (
    INFERENCE,
    ROOT,
    Fleet,
    comes_true,
    docker,
    fleet,
)
from tests.ports import free_port

STREAMS = 40  # 2 clients of 20 sessions each
OPEN = "sum(lbclient_resumable_streams)"
FOLLOWED = "inference_follows_total"
BEGAN = 'process_start_time_seconds{job="engine"}'
FAILED = 'sum(lbclient_calls_total{code!="OK",code!="CANCELLED"})'


@pytest.fixture(scope="module")
def running(images: dict[str, str]) -> Iterator[Fleet]:
    with fleet(INFERENCE, images, free_port()) as one:
        yield one


def test_streams_leave_an_engine_that_stops_and_nothing_fails(running: Fleet) -> None:
    """When it is there again new streams come to it."""

    def is_whole() -> bool:
        return (
            running.number('sum(up{job="engine"})') == 4
            and running.number(OPEN) == STREAMS
            and min(running.ask(FOLLOWED).values()) > 0
        )

    assert comes_true(is_whole), running.ask(FOLLOWED)
    (one, *_) = running.containers("engine")
    assert docker("kill", "--signal", "TERM", one).returncode == 0
    assert comes_true(lambda: one not in running.containers("engine"))
    began_at = running.ask(BEGAN).values()
    assert docker("start", one).returncode == 0
    assert comes_true(
        lambda: max(running.ask(BEGAN).values(), default=0.0) > max(began_at)
    )
    assert comes_true(is_whole), running.ask(FOLLOWED)
    assert running.number(FAILED) == 0.0, running.words("client")


def queries() -> list[str]:
    board = json.loads((ROOT / "examples/inference/inference.json").read_text())
    return [
        query["expr"].replace("$__rate_interval", "8s")
        for panel in board["panels"]
        for query in panel["targets"]
    ]


def test_sessions_find_their_blocks_and_every_panel_has_data(running: Fleet) -> None:
    def without_data() -> list[str]:
        found = {query: running.series(query) for query in queries()}
        return [
            query
            for query, series in found.items()
            if not series or any(one["value"][1] == "NaN" for one in series)
        ]

    assert comes_true(lambda: not without_data()), without_data()
    assert running.number('sum(inference_blocks_total{hit="yes"})') > 0
