"""The table in the docstring of `lifecycle` says what the code does, and all of it."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

import lbclient
from lbclient.core.backends import lifecycle
from lbclient.core.backends.call_answers import MISSES
from lbclient.core.backends.checks import Doubt
from lbclient.core.backends.connection_state import STATE_OF_TASK, Link, Order, Step
from lbclient.core.backends.doubts import Doubts
from lbclient.core.backends.lifecycle import Lifecycle
from lbclient.core.model import State, TaskState

INTERVAL = 2.0
NOW = 100.0

STATES = {
    Link.DOWN: (State.CONNECTING, State.LAME_DUCK, State.REFUSING),
    Link.UP: tuple(set(State) - {State.INACTIVE}),
    Link.AWAY: (State.INACTIVE, State.STARTING, State.LAME_DUCK, State.REFUSING),
}
"""Those that a backend can have, by its connection."""

Before = tuple[State, Link]


class Row(NamedTuple):
    event: str
    state: str
    links: str
    when: str
    after: str
    link_after: str
    order: str

    def fits(self, before: Before) -> bool:
        state, link = before
        return self.state in ("any", state.name) and (
            self.links == "any" or link.name in self.links.split("/")
        )


def read_table() -> tuple[list[Row], dict[str, set[str]]]:
    """Its rows, and by event the files that tell of it."""
    lines = inspect.getsource(lifecycle).splitlines()
    ruler = next(line for line in lines if line.startswith("-----"))
    columns = [found.start() for found in re.finditer("-+", ruler)]
    rows = list[Row]()
    files = dict[str, set[str]]()
    told_by = ""
    for line in lines[lines.index(ruler) + 1 :]:
        if line.startswith("While the resolver"):
            break
        if ": " in line:
            told_by = line.partition(": ")[2]
        elif line:
            ends = [*columns[1:], None]
            event, before, when, after, order = (
                line[at:end].strip() for at, end in zip(columns, ends, strict=True)
            )
            state, links = before.split()
            state_after, link_after = after.split()
            rows.append(Row(event, state, links, when, state_after, link_after, order))
            files.setdefault(event, set()).add(told_by)
    return rows, files


ROWS, FILES = read_table()


def doubted(life: Lifecycle, doubt: Doubt, is_unanswered: bool = False) -> None:
    life.connection.checks.begin(doubt, "the cause")
    if is_unanswered:
        life.connection.checks.is_unanswered = True
        life.connection.looks.at_once(NOW)
        life.connection.looks.take_due(NOW)


def health_reported(life: Lifecycle, told: TaskState) -> Step:
    return life.health_reported(told, False, NOW)


def reported_while_excluded(life: Lifecycle, told: TaskState) -> Step:
    doubted(life, Doubt.EXCLUDED)
    return life.health_reported(TaskState.SERVING, False, NOW)


def trailer_expired(life: Lifecycle, told: TaskState) -> Step:
    return life.trailer_expired()


def resolver_said_that_it_stays(life: Lifecycle, told: TaskState) -> Step:
    before = life.state
    life.resolver_said(True)
    if before is not State.LAME_DUCK:
        return Step()
    state = State.INACTIVE if life.is_away() else State.READY
    said = STATE_OF_TASK[told]
    life.connection.enter(state if said is State.READY else said, "as told")
    return life.resolver_said(False)


def deadlines_missed(life: Lifecycle, has_others: bool) -> Step:
    for _ in range(MISSES):
        step = life.doubts.deadline_missed(0, has_others, NOW)
    return step


def calls_unanswered(life: Lifecycle, told: TaskState) -> Step:
    life.connection.calls.heard(0.0)
    return life.doubts.look_at_calls(1, 0, NOW)


def check_answered(doubt: Doubt) -> Callable[[Lifecycle, TaskState], Step]:
    def answer(life: Lifecycle, told: TaskState) -> Step:
        doubted(life, doubt)
        return life.doubts.check_answered(told, NOW)

    return answer


def check_unanswered(life: Lifecycle, told: TaskState) -> Step:
    doubted(life, Doubt.EXCLUDED)
    return life.doubts.check_unanswered(NOW)


def check_refused(life: Lifecycle, has_others: bool) -> Step:
    doubted(life, Doubt.EXCLUDED)
    return life.doubts.check_refused("UNAVAILABLE", NOW, has_others)


def look_answered(life: Lifecycle, told: TaskState) -> Step:
    doubted(life, Doubt.EXCLUDED, is_unanswered=True)
    return life.look_answered(told, NOW)


def look_unanswered(life: Lifecycle, is_there: bool, has_others: bool) -> Step:
    doubted(life, Doubt.EXCLUDED, is_unanswered=True)
    return life.look_unanswered("cannot connect", NOW, is_there, has_others)


Happens = Callable[[Lifecycle, TaskState], Step]

EVENTS: dict[tuple[str, str], Happens] = {
    ("connected", "-"): lambda life, _: life.connected(NOW, INTERVAL),
    ("connect_failed", "-"): lambda life, _: life.connect_failed("refused"),
    ("connection_lost", "-"): lambda life, _: life.connection_lost(),
    ("goaway_received", "-"): lambda life, _: life.goaway_received(),
    ("became_idle", "-"): lambda life, _: life.became_idle(300.0, NOW, by_udp=False),
    ("wanted", "-"): lambda life, _: life.wanted(),
    ("resolver_said", "it leaves"): lambda life, _: life.resolver_said(True),
    ("resolver_said", "it stays"): resolver_said_that_it_stays,
    ("health_reported", "EXCLUDED, serving"): reported_while_excluded,
    ("health_reported", "-"): health_reported,
    ("lame_duck_in_trailer", "-"): lambda life, _: life.lame_duck_in_trailer(NOW),
    ("udp_answered", "-"): lambda life, told: life.udp_answered(told),
    ("udp_unanswered", "-"): lambda life, _: life.udp_unanswered(NOW),
    ("fell_silent", "-"): lambda life, _: life.fell_silent(3.0),
    ("stayed_silent", "-"): lambda life, _: life.stayed_silent(),
    ("trailer_expired", "-"): trailer_expired,
    ("deadline_missed", "others are ready"): lambda life, _: deadlines_missed(
        life, True
    ),
    ("deadline_missed", "no other is ready"): lambda life, _: deadlines_missed(
        life, False
    ),
    ("look_at_calls", "none is answered"): calls_unanswered,
    ("check_answered", "CALLS_UNANSWERED"): check_answered(Doubt.CALLS_UNANSWERED),
    ("check_answered", "NEVER_HEARD"): check_answered(Doubt.NEVER_HEARD),
    ("check_answered", "EXCLUDED"): check_answered(Doubt.EXCLUDED),
    ("check_unanswered", "-"): check_unanswered,
    ("check_refused", "nobody answers"): lambda life, _: check_refused(life, False),
    ("check_refused", "-"): lambda life, _: check_refused(life, True),
    ("look_answered", "-"): look_answered,
    ("look_unanswered", "nobody answers"): lambda life, _: look_unanswered(
        life, True, False
    ),
    ("look_unanswered", "it answers pings"): lambda life, _: look_unanswered(
        life, True, True
    ),
    ("look_unanswered", "no other is ready"): lambda life, _: look_unanswered(
        life, False, False
    ),
    ("look_unanswered", "-"): lambda life, _: look_unanswered(life, False, True),
}
"""How each event happens, where its condition holds."""

ANSWERS = {"health_reported", "check_answered", "udp_answered"}
"""Those that prove that the backend answers health checks."""

ONLY_UP = {"fell_silent", "stayed_silent", "trailer_expired"}
"""Events of time alone: what they wait for is forgotten with a connection."""


def backend(before: Before) -> Lifecycle:
    life = Lifecycle(INTERVAL, Random(7))
    state, link = before
    life.connection.move(link)
    life.connection.has_answered = False
    life.connection.enter(state, "so far")
    life.state = state
    return life


def expected(row: Row | None, before: Before, told: TaskState) -> tuple[State, Link]:
    state, link = before
    if row is None:
        return before
    after = link if row.link_after == "same" else Link[row.link_after]
    if row.after == "same":
        return state, after
    if row.after != "told":
        return State[row.after], after
    if told is TaskState.SERVING and after is Link.AWAY:
        return State.INACTIVE, after
    return STATE_OF_TASK[told], after


@pytest.mark.parametrize(("event", "when"), EVENTS)
def test_the_code_does_what_the_table_says(event: str, when: str) -> None:
    rows = [row for row in ROWS if row.event == event and row.when in (when, "-")]
    for link, states in STATES.items():
        if event in ONLY_UP and link is not Link.UP:
            continue
        for state in states:
            before = (state, link)
            for told in TaskState:
                life = backend(before)
                step = EVENTS[event, when](life, told)
                row = next((row for row in rows if row.fits(before)), None)
                after = expected(row, before, told)
                assert (step.state or state, life.link) == after, (before, told)
                order = None if row is None or row.order == "-" else Order[row.order]
                assert step.order is order, (before, told)
                if row is None:
                    assert life.connection.looks.due_at is None, before
                elif event in ANSWERS:
                    assert life.answers_checks()


@pytest.mark.parametrize(("event", "when"), EVENTS)
def test_who_leaves_is_never_ready_nor_inactive(event: str, when: str) -> None:
    if event == "resolver_said":
        return
    for link, states in STATES.items():
        for state in set(states) - {State.READY, State.INACTIVE}:
            life = backend((state, link))
            life.connection.is_leaving = True
            step = EVENTS[event, when](life, TaskState.SERVING)
            assert step.state not in (State.READY, State.INACTIVE)


def test_each_row_of_the_table_is_walked() -> None:
    assert {(row.event, row.when) for row in ROWS} == set(EVENTS)
    pairs = [(state, link) for link, states in STATES.items() for state in states]
    for row in ROWS:
        assert any(row.fits(pair) for pair in pairs), row


def test_each_method_that_takes_a_step_is_an_event_of_the_table() -> None:
    steps = {
        name
        for owner in (Lifecycle, Doubts)
        for name, method in inspect.getmembers(owner, inspect.isfunction)
        if inspect.signature(method).return_annotation is Step
        and not name.startswith("_")
    }
    # They give orders, and change nothing themselves.
    assert steps - {"tick", "stream_ended_unheard"} == {row.event for row in ROWS}


def test_the_file_that_the_table_names_tells_of_the_event() -> None:
    root = Path(lbclient.__file__).parent
    for event, files in FILES.items():
        for name in files:
            path = root / name if name != "`tick`" else Path(lifecycle.__file__)
            assert f".{event}(" in path.read_text(), (event, name)
