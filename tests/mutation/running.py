"""Runs the tests of a module on its mutants, each in a fork.

pytest collects the tests once, but for the slow ones. Each fork gives the functions of
the module their mutant's code and runs the tests that call the function with the
change: first those that noticed many, then the short ones, for a few seconds. A change
that acts as the module is imported has a fork in which nothing of the package was
imported yet, and all short tests of the module.
"""

import doctest
import gc
import os
import pickle
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.mutation.making import Mutant, mutated

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "lbclient"
EXAMPLES = 10  # of each law
SECONDS = 3.0  # CPU, of the tests of one mutant as they are; the short ones come first
CPU_TIMES, CPU_MORE = 4.0, 3.0  # what a mutant's tests may take, of what they took
WALL = 120.0  # seconds, if they wait rather than run
MOST_MEMORY = 4 << 30


class Called(NamedTuple):
    """A test that passes: its number, its CPU seconds, and the lines where functions
    begin that it calls in the module."""

    at: int
    seconds: float
    begin: frozenset[int]


def preload() -> None:
    """What all forks share. Nothing of lbclient: that is imported after planting."""
    for name in ("grpc.aio", "hypothesis.stateful", "google.protobuf.message"):
        import_module(name)
    import_module("_pytest.assertion.rewrite")
    assert not any(name.split(".")[0] == "lbclient" for name in sys.modules)
    # No example is kept, for the next mutant or the next run, and none made smaller.
    settings.register_profile(
        "mutation",
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )


def in_fork(do: Callable[[], Any], cpu: float, wall: float) -> Any:
    """What `do` returns, or None if it did not, within `cpu` and `wall` seconds."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (int(cpu) + 1, int(cpu) + 2))
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
        try:
            os.write(writing, pickle.dumps(do()))
        finally:
            os._exit(0)
    os.close(writing)
    said, ends_at = b"", time.monotonic() + wall
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0.0, ends_at - time.monotonic()))[0]:
            if not (more := pipe.read(1 << 16)):
                break
            said += more
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # and what it began
    os.waitpid(pid, 0)
    return pickle.loads(said) if said else None


def pytest_arguments(tests: str) -> list[str]:
    quiet = ["-q", "-m", "not slow", "--no-header", "-p", "no:cacheprovider"]
    quiet += ["-W", "ignore:Module already imported"]  # by `preload`
    laws = ["--hypothesis-profile=mutation", "--hypothesis-seed=0"]
    return [*quiet, *laws, *(f"tests/{name}.py" for name in tests.split())]


def name_of(module: str) -> str:
    return "lbclient." + module.removesuffix(".py").replace("/", ".")


def doctests_pass(module: str) -> bool:
    """Not by pytest, which reads files that it is given by itself."""
    return not doctest.testmod(import_module(name_of(module))).failed


class Short:
    """A plugin of pytest that runs these tests alone, in this order."""

    def __init__(self, names: list[str]) -> None:
        self._names = {name: at for at, name in enumerate(names)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        some = [one for one in items if one.nodeid in self._names]
        some.sort(key=lambda one: self._names[one.nodeid])
        items[:] = some


def passes_from_import(
    module: str, tests: str, names: list[str], mutant: Mutant
) -> bool:
    """In a fork: the module's tests, where it was imported with the change."""
    from tests.worlds.planting import plant_tree

    path = PACKAGE / module
    source = path.read_text()
    plant_tree(path, mutated(source, mutant.number, mutant.change))
    code = pytest.main(["-x", *pytest_arguments(tests)], plugins=[Short(names)])
    return not code and doctests_pass(module)


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def within(most: float, some: Iterable[Called]) -> list[Called]:
    """The first ones that take so many seconds together."""
    chosen, spent = [], 0.0
    for one in some:
        spent += one.seconds
        if spent > most:
            break
        chosen.append(one)
    return chosen


class Forking:
    """A plugin of pytest that runs no test: forks of it do."""

    def __init__(self, module: str, wanted: list[Mutant], most: float) -> None:
        self._module = module
        self._path = PACKAGE / module
        self._wanted = wanted
        self._most = most
        self.survivors: list[Mutant] | None = None  # None: the tests fail as they are
        self.names: list[str] = []  # of the tests, the short ones first

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        import_module(name_of(self._module))
        self._functions = [
            one
            for one in gc.get_objects()
            if isinstance(one, FunctionType)
            and one.__code__.co_filename == str(self._path)
        ]
        gc.collect()
        gc.freeze()
        forever = 86400.0
        tests: list[Called] | None
        tests = in_fork(lambda: self._profile(session), forever, forever)
        if tests is None:
            return True
        tests.sort(key=lambda one: one.seconds)
        self.names = [session.items[one.at].nodeid for one in within(self._most, tests)]
        kills = [0] * len(session.items)
        self.survivors = []
        for mutant in self._wanted:
            lines = mutant.lines
            assert lines is not None
            some = [one for one in tests if not one.begin.isdisjoint(lines)]
            some.sort(key=lambda one: -kills[one.at])
            some = within(self._most, some)
            cpu = CPU_MORE + CPU_TIMES * sum(one.seconds for one in some)
            run = partial(self._first_to_fail, session, mutant, some)
            result = in_fork(run, cpu, WALL)
            if result == -1:
                self.survivors.append(mutant)
            elif isinstance(result, int) and result < len(kills):
                kills[result] += 1
        return True

    def _run_item(self, session: pytest.Session, at: int, after: int | None) -> None:
        item = session.items[at]
        later = None if after is None else session.items[after]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=later)

    def _profile(self, session: pytest.Session) -> list[Called] | None:
        """None if a test fails."""
        begin: set[int] = set()
        name = str(self._path)

        def note(frame: FrameType, event: str, argument: object) -> None:
            if frame.f_code.co_filename == name:
                begin.add(frame.f_code.co_firstlineno)

        called = []
        for at, after in zip_longest(
            range(len(session.items)), range(1, len(session.items))
        ):
            begin.clear()
            began_at = time.process_time()
            threading.settrace(note)
            sys.settrace(note)
            self._run_item(session, at, after)
            sys.settrace(None)
            threading.settrace(None)
            if session.testsfailed:
                return None
            seconds = time.process_time() - began_at
            called.append(Called(at, seconds, frozenset(begin)))
        return called if doctests_pass(self._module) else None

    def _first_to_fail(
        self, session: pytest.Session, mutant: Mutant, some: list[Called]
    ) -> int:
        """The test's number; -1: none."""
        self._plant(mutant)
        numbers = [one.at for one in some]
        for at, after in zip_longest(numbers, numbers[1:]):
            self._run_item(session, at, after)
            if session.testsfailed:
                return at
        return -1 if doctests_pass(self._module) else len(session.items)

    def _plant(self, mutant: Mutant) -> None:
        source = self._path.read_text()
        tree = mutated(source, mutant.number, mutant.change)
        whole = compile(tree, str(self._path), "exec")
        new = {(one.co_qualname, one.co_firstlineno): one for one in codes(whole)}
        for one in self._functions:
            was = one.__code__
            code = new[was.co_qualname, was.co_firstlineno]
            if code.co_freevars == was.co_freevars:
                one.__code__ = code


Outcome = tuple[list[Mutant], list[str]]  # survivors, and names of tests


def _run_later(
    module: str, tests: str, wanted: list[Mutant], most: float
) -> Outcome | None:
    """In a fork, of which each mutant has a fork."""
    forking = Forking(module, wanted, most)
    pytest.main(pytest_arguments(tests), plugins=[forking])
    return None if forking.survivors is None else (forking.survivors, forking.names)


def survivors(
    module: str, tests: str, wanted: list[Mutant], most: float = SECONDS
) -> list[Mutant] | None:
    """Whom no test notices; None: the tests fail on the module as it is.

    `most`: CPU seconds of the tests of a mutant, as they are."""
    later = [one for one in wanted if one.lines is not None]
    forever = 86400.0
    run = partial(_run_later, module, tests, later, most)
    found: Outcome | None = in_fork(run, forever, forever)
    if found is None:
        return None
    left, names = found
    cpu = 10.0 + CPU_MORE + CPU_TIMES * most
    for mutant in wanted:
        if mutant.lines is None:
            passes = partial(passes_from_import, module, tests, names, mutant)
            if in_fork(passes, cpu, WALL):
                left.append(mutant)
    return left
