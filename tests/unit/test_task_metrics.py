"""The scrape of all workers, while they make their files."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.mmap_dict import MmapedDict

from lbclient.cli.operate.task_metrics import _exposition


def test_a_file_that_a_worker_has_just_made_fails_no_scrape(tmp_path: Path) -> None:
    """It is empty for an instant, which prometheus_client cannot read."""
    file = tmp_path / "counter_1.db"
    file.touch()
    looks = 0

    class Worker:
        def collect(self) -> list[Any]:
            nonlocal looks
            looks += 1
            if looks == 2:
                MmapedDict(str(file)).close()  # type: ignore[no-untyped-call]
            MmapedDict.read_all_values_from_file(str(file))  # type: ignore[no-untyped-call]
            return []

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Worker())
    request: Any = SimpleNamespace(headers={})
    assert _exposition(registry, request).body == b""
    assert looks == 2
