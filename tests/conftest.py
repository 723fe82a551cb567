"""What all tests share: virtual time for tests/loop, and a look for what is left.

Everything under tests/loop runs on `VirtualLoop`, which is for fakes only: with
real sockets or threads in flight it would jump past them.
"""

import asyncio
import faulthandler
import gc
import inspect
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from lbclient.testing import VirtualLoop
from tests import time_limit
from tests.examples import USUAL
from tests.ports import free_port
from tests.waiting import Eventually, eventually

# Laws explore: each run tries other examples, by a seed that the header names and
# `--hypothesis-seed` takes back, as .ci/run does with one seed for all its runs. No
# deadlines, as machines are slow. Without a word of ours, hypothesis would repeat the
# examples of its own choice wherever CI is set.
for name, count in {"quick": 5, "default": USUAL, "long": 1000}.items():
    settings.register_profile(
        name,
        deadline=None,
        derandomize=False,
        max_examples=count,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("default")

# A shell that starts a run in the background has it ignore Ctrl-C, and all its children
# would, too: tests interrupt some of these.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


pytest_addoption = time_limit.add_option
pytest_runtest_protocol = time_limit.pytest_runtest_protocol


# Up to 1.82 a call object of grpc.aio's interceptors raises when it is freed after its
# channel, in whatever test comes then.
OF_OLD_GRPCIO = (
    "ignore:Exception ignored in. <function InterceptedCall.__del__"
    ":pytest.PytestUnraisableExceptionWarning"
)


@pytest.hookimpl(tryfirst=True)  # hypothesis reads the option when its turn comes
def pytest_configure(config: pytest.Config) -> None:
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(secrets.randbits(32))
    config.addinivalue_line("filterwarnings", OF_OLD_GRPCIO)


def pytest_report_header(config: pytest.Config) -> str:
    return f"laws: --hypothesis-seed={config.option.hypothesis_seed}"


END_WITHIN = 60.0  # seconds, from the last test; it is one or two


def pytest_unconfigure() -> None:
    """A test that failed may have left a handler in a thread, and the interpreter waits
    for that one for ever: rather it ends as a failure, and shows what all threads do.
    """
    stderr = 2  # by number, as pytest may have its own in place of that
    faulthandler.dump_traceback_later(END_WITHIN, exit=True, file=stderr)


@pytest.fixture(scope="module", autouse=True)
def few_objects() -> None:
    """Whatever other modules left is not looked through at each collection."""
    gc.collect()
    gc.freeze()


LOOP_TESTS = Path(__file__).parent / "loop"

# Callbacks of a task that was just cancelled need a turn or two of the loop each; of
# a stream that was cancelled grpcio's threads tell the loop, on a busy machine late.
TURNS = 20
PAUSES = 500


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.path.is_relative_to(LOOP_TESTS):
        return {"virtual": VirtualLoop}
    return {"real": asyncio.new_event_loop}


@pytest.fixture(name="free_port")
def _free_port() -> Callable[[], int]:
    return free_port


@pytest.fixture(name="eventually")
def _eventually() -> Eventually:
    return eventually


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> None:
    """First set up, hence last torn down: it sees what all other fixtures left."""
    if inspect.iscoroutinefunction(getattr(request, "function", None)):
        request.getfixturevalue("no_task_left")


@pytest.fixture
async def no_task_left() -> AsyncIterator[None]:
    """Every task has an owner, and the owner has ended it.

    So has every channel: one that was used and not closed still has its tasks.
    """
    yield
    left = _other_tasks()
    for turn in range(TURNS + PAUSES):
        if not left:
            return
        await asyncio.sleep(0 if turn < TURNS else 0.02)
        left = _other_tasks()
    pytest.fail(f"{len(left)} tasks left: {left}")


def _other_tasks() -> list[str]:
    this = asyncio.current_task()
    return [repr(task) for task in asyncio.all_tasks() if task is not this]
