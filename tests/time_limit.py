"""A test that hangs fails, with what every thread and task waits for; the run goes on.

What no signal can end, such as a hang inside of C, ends the run a little later:
`faulthandler_timeout` in pyproject.toml.
"""

import asyncio
import faulthandler
import signal
import tempfile
import threading
from collections.abc import Iterator
from io import StringIO

import pytest

SECONDS = 150  # of a test with its fixtures, less than `faulthandler_timeout`
AGAIN = 10.0  # seconds until a fixture that hangs in its end is ended, too
STACK = 30  # frames of a task, at most


def add_option(parser: pytest.Parser) -> None:
    parser.addini("time_limit", "seconds that a test may take", default=str(SECONDS))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        return (yield)
    seconds = float(item.config.getini("time_limit"))

    def end(signum: int, frame: object) -> None:
        tasks = tasks_here()
        said = stacks(tasks)
        for task in tasks:
            task.cancel()
        pytest.fail(f"{seconds:g} s were not enough\n{said}", pytrace=False)

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def tasks_here() -> set[asyncio.Task[object]]:
    try:
        return asyncio.all_tasks(asyncio.get_running_loop())
    except RuntimeError:  # no loop runs
        return set()


def stacks(tasks: set[asyncio.Task[object]]) -> str:
    """Of all threads and of these tasks."""
    said = StringIO()
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        said.write(file.read())
    for task in sorted(tasks, key=asyncio.Task.get_name):
        try:
            task.print_stack(limit=STACK, file=said)
        except TypeError:  # grpcio's own coroutines have no line
            said.write(f"{task!r}\n")
    return said.getvalue()
