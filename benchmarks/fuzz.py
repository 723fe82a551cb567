"""Fuzzes every decoder of bytes that somebody else controls.

    python -m benchmarks.fuzz                            all, ten minutes
    python -m benchmarks.fuzz --minutes 1 "UDP datagrams"   some decoders

Each has its share of the time, in a process of its own. With atheris installed (`pip
install atheris`) coverage guides what is tried; without it examples are changed by
chance. What a decoder may not raise ends its share, and is told with the bytes.
"""

import argparse
import importlib
import importlib.util
import subprocess
import sys
import time
import traceback
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from benchmarks.harness.options import exit_with, parser_of

if TYPE_CHECKING:
    from benchmarks.harness.decoders import Decoder

ROOT = Path(__file__).parents[1]


def decoders() -> Any:
    """The module of decoders, which is imported here so that atheris can see it be."""
    return importlib.import_module("benchmarks.harness.decoders")


def by_chance(decoder: "Decoder", seconds: float, seed: int) -> int:
    """Returns how many inputs were tried; raises what was found."""
    tried = decoders().tried
    rng = Random(seed)
    kept, count = list(decoder.examples), 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(100):
            data = changed(rng, rng.choice(kept), kept)
            count += 1
            try:
                tried(decoder, data)
            except BaseException:
                print(f"FOUND in {decoder.name}: {data!r}", flush=True)
                raise
        if rng.random() < 0.1 and len(kept) < 200:
            kept.append(data)
    return count


def changed(rng: Random, data: bytes, others: list[bytes]) -> bytes:
    for _ in range(rng.randint(1, 5)):
        at = rng.randint(0, len(data))
        kind = rng.randrange(5)
        if kind == 0:
            data = data[:at] + rng.randbytes(rng.randint(1, 4)) + data[at + 1 :]
        elif kind == 1:
            data = data[:at] + data[at + rng.randint(1, 20) :]
        elif kind == 2:
            other = rng.choice(others)
            data = data[:at] + other[rng.randint(0, len(other)) :]
        elif kind == 3:
            data = data[:at] + data[at : at + 20] * rng.choice((2, 50)) + data[at:]
        elif data:
            at = min(at, len(data) - 1)
            flipped = data[at] ^ (1 << rng.randrange(8))
            data = data[:at] + bytes([flipped]) + data[at + 1 :]
    return data


def by_coverage(name: str, seconds: float, seed: int) -> None:
    """Does not return: libFuzzer ends the process, and tells what it did."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["lbclient"]):
        module = decoders()
    decoder = chosen([name])[0]
    arguments = [sys.argv[0], f"-max_total_time={max(1, int(seconds))}"]
    arguments += [f"-seed={seed + 1}", f"-max_len={module.MOST}", "-verbosity=0"]
    arguments += ["-print_final_stats=1", "-artifact_prefix=/tmp/lbclient-fuzz-"]

    def one(data: bytes) -> None:
        try:
            module.tried(decoder, data)
        except BaseException:
            print(f"FOUND in {decoder.name}: {data!r}", flush=True)
            traceback.print_exc()
            raise

    atheris.Setup(arguments, one)
    atheris.Fuzz()


def chosen(names: list[str]) -> "list[Decoder]":
    every: list[Decoder] = decoders().DECODERS
    return [one for one in every if not names or one.name in names]


def share(name: str, seconds: float, seed: int) -> None:
    if importlib.util.find_spec("atheris") is not None:
        by_coverage(name, seconds, seed)
    print(f"{by_chance(chosen([name])[0], seconds, seed):,} inputs")


def run_share(name: str, seconds: float, seed: int) -> tuple[bool, str]:
    """In a process of its own; whether nothing was found, and what it says."""
    command = [sys.executable, "-m", "benchmarks.fuzz", "--share", name]
    command += ["--minutes", str(seconds / 60), "--seed", str(seed)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = (done.stdout + done.stderr).splitlines()
    units = [one for one in lines if "number_of_executed_units" in one]
    if units:
        said = f"{int(units[0].split()[-1]):,} inputs, guided by coverage"
    else:
        said = lines[-1] if lines else "nothing"
    if done.returncode:
        said = "\n".join(lines[-40:])
    return done.returncode == 0, said


def main() -> int:
    parser = parser_of("fuzz", __doc__, json=False)
    parser.add_argument("names", nargs="*", help="of decoders; all of them")
    parser.add_argument("--minutes", type=float, default=10.0, help="in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.share is not None:
        share(asked.share, asked.minutes * 60, asked.seed)
        return 0
    some = chosen(asked.names)
    is_well = True
    for decoder in some:
        seconds = asked.minutes * 60 / len(some)
        went_well, said = run_share(decoder.name, seconds, asked.seed)
        is_well = is_well and went_well
        print(f"{decoder.name}: {said}", flush=True)
    return 0 if is_well else 1


if __name__ == "__main__":
    exit_with(main)
