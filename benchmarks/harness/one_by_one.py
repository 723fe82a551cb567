"""Runs one benchmark of the list in a process of its own, and says how it ended."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from benchmarks.harness.figures import machine
from benchmarks.harness.processes import ROOT
from benchmarks.harness.record import End, Run, measured_from
from benchmarks.listed import Listed

FAREWELL = 10.0  # seconds from SIGINT to SIGKILL
MOST_SAID = 200  # characters of the last line of one that failed


def run(listed: Listed, folder: Path, *, is_full: bool) -> Run:
    """The folder gets what it said, and all its figures."""
    command = listed.command(is_full=is_full)
    missing = [name for name in listed.needs if shutil.which(name) is None]
    if missing:
        said = "there is no " + ", ".join(missing)
        return Run(command=command, end=End.LEFT_OUT, seconds=0.0, said=said)
    folder.mkdir(parents=True, exist_ok=True)
    output, told = (
        folder / f"{listed.name}.txt",
        folder / f"{listed.name}.measured.json",
    )
    told.unlink(missing_ok=True)
    everything = folder / f"{listed.name}.json"
    words = [sys.executable, "-m", f"benchmarks.{listed.module}"]
    words += listed.arguments(is_full=is_full) or ()
    words += ["--measured", str(told), "--json", str(everything)]
    of = machine()
    load = of.pop("load average")
    began_at = time.monotonic()
    with output.open("w", encoding="utf-8") as out:
        most = listed.full_most if is_full else listed.short_most
        is_over = ran_to_its_end(words, out.fileno(), most)
    seconds = time.monotonic() - began_at
    ran = Run(command=command, end=End.HELD, seconds=seconds, machine=of, load=load)
    if not told.exists():
        end = End.FAILED if is_over else End.ENDED
        return replace(ran, end=end, said=_last(output))
    figures = json.loads(told.read_text(encoding="utf-8"))
    missed = figures["missed"] or []
    measured = [measured_from(fields) for fields in figures["measured"]]
    if missed or any(one.misses for one in measured):
        ran = replace(ran, end=End.MISSED, missed=missed)
    return replace(ran, measured=measured)


def ran_to_its_end(words: list[str], out: int, most: float) -> bool:
    """False: it was ended, and all processes that it has started."""
    process = subprocess.Popen(
        words, cwd=ROOT, stdout=out, stderr=out, start_new_session=True
    )
    try:
        process.wait(most)
    except subprocess.TimeoutExpired:
        return False
    finally:
        _end(process)
    return True


def _end(process: "subprocess.Popen[bytes]") -> None:
    for signaled in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signaled)
        with suppress(subprocess.TimeoutExpired):
            process.wait(FAREWELL)


def _last(output: Path) -> str:
    lines = output.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "")[:MOST_SAID]
