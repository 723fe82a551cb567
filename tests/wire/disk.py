"""A file on a disk that hangs, as those of a network do: who looks waits."""

from pathlib import PosixPath
from threading import Event
from typing import Any


class Disk(PosixPath):
    """Until `hang()`, and again after `go_on()`, it is an ordinary path."""

    looks = 0  # that had to wait
    runs: Event | None = None

    def hang(self) -> None:
        self.runs = Event()

    def go_on(self) -> None:
        if self.runs is not None:
            self.runs.set()

    def stat(self, **options: Any) -> Any:
        if self.runs is not None and not self.runs.is_set():
            self.looks += 1
            self.runs.wait(60)
        return super().stat(**options)
