"""What two threads, two interpreters and two processes compute, over one of each.

    python -m benchmarks.interpreters          10 s, on two idle cores

Needs nothing of lbclient, so any Python runs it, as `python3.13 -m` or a free-threaded
one. Where there is grpcio it tells whether interpreters of one process can import it.
"""

import argparse
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

SECONDS = 1.0
COUNT = f"""
import time
end, rounds = time.monotonic() + {SECONDS}, 0
while time.monotonic() < end:
    for _ in range(1000):
        rounds += 1
"""
IMPORT = """
try:
    import {module}
except ImportError as error:
    said = f"{{type(error).__name__}}: {{error}}"
else:
    said = "imported"
print("{module} in another interpreter:", said, flush=True)
"""
TELL = "\nwith open({path!r}, 'w') as file: file.write(str(rounds))\n"


def interpreters() -> Any:
    """The module that makes them, by whichever name; None: there is none."""
    for name in ("_interpreters", "_xxsubinterpreters"):
        try:
            return __import__(name)
        except ImportError:
            pass
    return None


def in_thread(results: list[int]) -> None:
    found: dict[str, int] = {}
    exec(COUNT, found)
    results.append(found["rounds"])


def in_process(results: list[int]) -> None:
    command = [sys.executable, "-c", f"{COUNT}\nprint(rounds)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    results.append(int(done.stdout))


def in_interpreter(results: list[int]) -> None:
    of = interpreters()
    number = of.create()
    path = f"/tmp/interpreter-{threading.get_ident()}"
    of.run_string(number, COUNT + TELL.format(path=path))
    with open(path) as file:
        results.append(int(file.read()))


def rounds(count: Callable[[list[int]], None], times: int) -> int:
    results: list[int] = []
    threads = [threading.Thread(target=count, args=(results,)) for _ in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(results)


def main() -> int:
    argparse.ArgumentParser(
        prog="python -m benchmarks.interpreters",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(f"Python {sys.version.split()[0]}, {'with' if has_gil else 'without'} GIL")
    kinds = {"threads": in_thread, "processes": in_process}
    if (of := interpreters()) is not None:
        kinds["interpreters"] = in_interpreter
    for kind, count in kinds.items():
        print(f"two {kind} / one: {rounds(count, 2) / rounds(count, 1):.2f}")
    for module in ("grpc", "google.protobuf.message", "google._upb._message"):
        if of is not None:
            of.run_string(of.create(), IMPORT.format(module=module))
    return 0


if __name__ == "__main__":
    sys.exit(main())
