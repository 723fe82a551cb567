"""Metrics of several workers in one scrape, by prometheus_client's multiprocess mode.

There each worker writes its numbers to files of its own, and whichever is scraped adds
up all files. Ours are read, not written at each call; so a thread reads them every five
seconds, and writes them where prometheus_client's own are. They are also written at
exit and when a channel or a server is closed: a worker of uvicorn's closes them in its
lifespan and then ends by the signal that it was sent, without an exit. It goes through
the class of prometheus_client that all its metrics use, which also sees to forks.
"""

import atexit
import os
import threading
from collections.abc import Iterator
from typing import Any

from prometheus_client import values

from lbclient.core.statistics.registry import CHANNELS, SERVERS
from lbclient.log import Log
from lbclient.metrics.durations import FAMILY_OF, PROMETHEUS_CODES, SHOWN, Durations
from lbclient.metrics.families import HIGHEST, SAMPLES, Family
from lbclient.metrics.samples import Sample
from lbclient.metrics.sums import Sums

logger = Log("lbclient.metrics")

DIRECTORY = ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir")
EVERY = 5.0  # seconds; a scrape comes every 15 s or more seldom


def is_on() -> bool:
    """Whether prometheus_client writes to files: it decides when it is imported."""
    is_wanted = any(os.environ.get(name) for name in DIRECTORY)
    return is_wanted and values.ValueClass is not values.MutexValue


def is_late() -> bool:
    """Whether the mode was asked for after prometheus_client had been imported."""
    return not is_on() and any(os.environ.get(name) for name in DIRECTORY)


class Mirror:
    """Mirrors one process's metrics. After a fork each process has its own mirror."""

    def __init__(self) -> None:
        self.sums = Sums()
        self._values: dict[Sample, Any] = {}
        self._told = ""  # of the last failure
        self._writing = threading.Lock()  # held across a fork: no lock stays locked
        self._start()
        atexit.register(self.write)
        for registry in (CHANNELS, SERVERS):
            registry.tell_when_left.append(self._closed)
        os.register_at_fork(
            before=self._writing.acquire,
            after_in_parent=self._writing.release,
            after_in_child=self._forked,
        )

    def _start(self) -> None:
        self._is_over = threading.Event()
        run = threading.Thread(target=self._run, name="lbclient metrics", daemon=True)
        run.start()

    def _forked(self) -> None:
        """In the child, where the thread is gone and the channels are its parent's."""
        self._writing.release()
        self.sums = self.sums.after_fork()
        self._start()

    def _run(self) -> None:
        while not self._is_over.wait(EVERY):
            self.write()

    def _closed(self, source: object) -> None:
        if self.sums.has(source):
            self.write()

    def write(self) -> None:
        """Writes all numbers. Never fails: metrics must not end a program."""
        with self._writing:
            try:
                self._write()
            except Exception as error:
                if repr(error) != self._told:  # once, however often it is tried
                    words = "metrics could not be written for other processes"
                    logger.exception(words, reason=error)
                self._told = repr(error)
            else:
                self._told = ""

    def _write(self) -> None:
        missing = dict.fromkeys(self._values)
        for sample, number in self._numbers():
            missing.pop(sample, None)
            value = self._values.get(sample)
            if value is None:
                value = self._values[sample] = _value(sample)
            value.set(number)
        for sample in missing:
            if SAMPLES[sample[0]][0].kind not in ("counter", "histogram"):
                self._values[sample].set(0.0)  # of a backend that is gone, perhaps

    def _numbers(self) -> Iterator[tuple[Sample, float]]:
        before: dict[Sample, float] = {}
        for sample, number in self.sums.collect().items():
            if SAMPLES[sample[0]][0].kind != "histogram":
                yield sample, number
            elif sample[0].endswith("_bucket"):  # which accumulate only when read
                labels = sample[:-1]
                yield sample, number - before.get(labels, 0.0)
                before[labels] = number
            elif sample[0].endswith("_sum"):
                yield sample, number
        yield from _buckets(self.sums.durations())

    def __repr__(self) -> str:
        return f"<mirror of {self.sums!r}>"


def _buckets(durations: Durations) -> Iterator[tuple[Sample, float]]:
    from lbclient.core.statistics.call_times import BOUNDS

    for (what, target, method, code), times in durations.times.items():
        family = FAMILY_OF.get(what)
        if family is None or not method:
            continue
        of_target = (target,) if target else ()
        labels = (*of_target, *method[1:], PROMETHEUS_CODES[code])
        first = 0
        for bound, le in zip((*SHOWN, None), (*map(str, SHOWN), "+Inf"), strict=True):
            last = len(BOUNDS) if bound is None else BOUNDS.index(bound)
            counts = times.counts[first : last + 1]
            yield (f"{family}_bucket", *labels, le), float(sum(counts))
            first = last + 1
        yield (f"{family}_sum", *labels), times.sum


def _value(sample: Sample) -> Any:
    name, *labels = sample
    family, labelnames = SAMPLES[name]
    kind, metric = _kind(name, family)
    mode = "livemax" if family.name in HIGHEST else "livesum"
    return values.ValueClass(
        kind,
        metric,
        name,
        labelnames,
        labels,
        family.help,
        multiprocess_mode=mode if kind == "gauge" else "",
    )


def _kind(name: str, family: Family) -> tuple[str, str]:
    """A distribution of now becomes gauges, which end with their process."""
    if family.kind == "gaugehistogram":
        return "gauge", name
    return family.kind, family.name


_mirror: Mirror | None = None


def mirror() -> Mirror:
    """The process's own, made when it is first asked for."""
    global _mirror
    if _mirror is None:
        _mirror = Mirror()
    return _mirror
