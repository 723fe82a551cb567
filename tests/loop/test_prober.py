"""What a prober asks, when, and whom it believes; in virtual time, without sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from random import Random, SystemRandom

import pytest

from lbclient.client.health.udp import TUNING as UDP
from lbclient.client.health.udp import Prober, ProberStatistics, Watch, locate
from lbclient.core.backends.demand import MEMORY, Demand
from lbclient.core.model import Endpoint, LoadReport, TaskState
from lbclient.wire import datagram

SECRET = "a secret that both sides know"
HOST, PORT = "192.0.2.1", 50051
ADDRESS = (HOST, PORT)
ELSEWHERE = ("192.0.2.2", PORT)
REPORT = LoadReport(0.5, 10.0, 0.0, 3)
SERVING, LAME_DUCK = TaskState.SERVING, TaskState.LAME_DUCK
TURN = 1e-3  # seconds, for what is due now
PAUSE = UDP.timeout / UDP.moments  # until the next moment, at most
SOON = UDP.period * (1 + UDP.jitter) + PAUSE  # after a change, the next probe
LATER = UDP.longest_period * (1 + UDP.jitter) + PAUSE  # while calls are frequent
LATEST = UDP.probes * (UDP.timeout + PAUSE) + TURN  # when silence is told


class Asking(Prober):
    """Its network is two lists: what was sent when, and what was told."""

    def __init__(self, secret: str = "", gap: Callable[[], float] | None = None):
        super().__init__(SystemRandom(), secret, gap or float)
        self.key = secret.encode()
        self.sent: list[tuple[float, int, Watch]] = []
        self.told: list[TaskState | str | None] = []
        self.state: TaskState | None = None  # what answers say; None: no answers
        self.answers_every = 1  # so manyth probe
        self.is_cut_off = False

    def send(self, data: bytes, watch: Watch) -> None:
        now = asyncio.get_running_loop().time()
        nonce = datagram.nonce_of(data)
        assert nonce is not None
        self.sent.append((now, nonce, watch))
        if self.is_cut_off:
            raise OSError("Network is unreachable")
        if self.state is not None and len(self.sent) % self.answers_every == 0:
            said = self.answer(self.state, nonce)
            asyncio.get_running_loop().call_soon(self.hear, said, watch.address)

    def answer(
        self, state: TaskState, nonce: int | None = None, *, is_news: bool = False
    ) -> bytes:
        """To the last probe, if to no other."""
        nonce = self.nonce if nonce is None else nonce
        return datagram.answer(nonce, state, REPORT, self.key, is_news=is_news)

    @property
    def nonce(self) -> int:
        return self.sent[-1][1]

    def tell(
        self, state: TaskState | None, report: LoadReport | None, reason: str = ""
    ) -> None:
        assert (state is None) == (report is None) == bool(reason)
        self.told.append(reason or state)

    async def ask(self, host: str = HOST) -> Watch:
        """Returns when it has been asked, if it was so at once."""
        watch = self.watch(host, PORT, self.tell)
        await asyncio.sleep(0)
        return watch

    def gaps(self) -> list[float]:
        return [b - a for a, b in pairwise(time for time, _, _ in self.sent)]


@pytest.fixture
async def asking() -> AsyncIterator[Asking]:
    asking = Asking()
    yield asking
    asking.close()


async def test_a_backend_is_asked_at_once_and_its_answer_is_told(
    asking: Asking,
) -> None:
    asking.state = SERVING
    await asking.ask()
    await asyncio.sleep(TURN)
    assert asking.told == [SERVING]


async def test_to_a_session_a_state_is_told_without_a_load(asking: Asking) -> None:
    """Which the task leaves out; zeros would say that it is idle."""
    heard: list[tuple[TaskState | None, LoadReport | None]] = []

    def tell(
        state: TaskState | None, report: LoadReport | None, reason: str = ""
    ) -> None:
        heard.append((state, report))

    seal = datagram.Seal(b"of the session", 7)
    asking.key, asking.state = seal.secret, SERVING
    asking.watch(HOST, PORT, tell, seal)
    await asyncio.sleep(TURN)
    assert heard == [(SERVING, None)]


async def test_a_silent_one_is_asked_again_by_its_new_session(asking: Asking) -> None:
    """And is believed by that alone."""
    old, new = (datagram.Seal(secret, 7) for secret in (b"the old", b"the new"))
    asking.key, asking.state = new.secret, None
    watch = asking.watch(HOST, PORT, lambda *said: asking.told.append(said[0]), old)
    await asyncio.sleep(LATEST)
    assert asking.told == [None]
    asking.state = SERVING
    asking.ask_again(watch, new)
    await asyncio.sleep(TURN)
    assert asking.told == [None, SERVING]
    asking.ask_again(watch, old)
    asking.key = old.secret
    asking.hear(asking.answer(LAME_DUCK, is_news=True), ADDRESS)
    assert asking.told == [None, SERVING]


async def test_one_that_is_well_as_expected_is_asked_seldom(asking: Asking) -> None:
    asking.state = SERVING
    await asking.ask()
    await asyncio.sleep(3600)
    least = UDP.longest_period * (1 - UDP.jitter) - PAUSE
    assert all(least <= gap <= LATER for gap in asking.gaps())
    assert len(asking.sent) > 3600 / LATER


async def test_after_a_change_it_is_asked_less_and_less_often(asking: Asking) -> None:
    asking.state = LAME_DUCK
    await asking.ask()
    await asyncio.sleep(3600)
    period = UDP.period
    for gap in asking.gaps():
        assert abs(gap - period) <= period * UDP.jitter + PAUSE
        period = min(period * UDP.stretch, UDP.longest_period)
    assert period == UDP.longest_period
    assert asking.told == [LAME_DUCK] * len(asking.sent)


async def test_no_two_probes_have_the_same_nonce(asking: Asking) -> None:
    asking.state = SERVING
    await asking.ask()
    await asking.ask(ELSEWHERE[0])
    await asyncio.sleep(3600)
    nonces = [nonce for _, nonce, _ in asking.sent]
    assert len(set(nonces)) == len(nonces) > 2


async def test_silence_is_told_once_after_so_many_probes(asking: Asking) -> None:
    asked_when_told = []

    def tell(state: object, report: object, reason: str = "") -> None:
        asked_when_told.append(len(asking.sent))
        asking.told.append(reason)

    asking.watch(HOST, PORT, tell)
    await asyncio.sleep(LATEST)
    reason = f"no answer to {UDP.probes} probes by UDP"
    assert asking.told == [reason]
    assert asked_when_told == [UDP.probes]
    assert asking.statistics().silent == 1
    await asyncio.sleep(3600)
    assert len(asking.sent) > UDP.probes
    assert asking.told == [reason]


async def test_a_network_that_takes_no_probe_is_silent_too(asking: Asking) -> None:
    asking.is_cut_off = True
    await asking.ask()
    await asyncio.sleep(LATEST)
    assert asking.told == [f"no answer to {UDP.probes} probes by UDP"]


async def test_a_lost_answer_is_no_silence(asking: Asking) -> None:
    await asking.ask()
    await asyncio.sleep((UDP.probes - 1) * UDP.timeout + PAUSE)
    asking.hear(asking.answer(SERVING), ADDRESS)
    await asyncio.sleep(LATEST)
    assert asking.told == [SERVING]


async def test_misses_count_only_in_a_row(asking: Asking) -> None:
    asking.state = SERVING
    asking.answers_every = UDP.probes
    await asking.ask()
    await asyncio.sleep(3600)
    assert len(asking.told) > 1
    assert set(asking.told) == {SERVING}


async def test_who_answers_again_is_told_and_asked_often_again(asking: Asking) -> None:
    await asking.ask()
    await asyncio.sleep(3600)
    asking.state = SERVING
    unanswered = len(asking.sent)
    await asyncio.sleep(3600)
    assert set(asking.told[1:]) == {SERVING}
    assert asking.gaps()[unanswered] <= SOON


async def test_news_are_told_at_once_and_once(asking: Asking) -> None:
    asking.state = SERVING
    await asking.ask()
    await asyncio.sleep(TURN)
    for _ in range(2):
        asking.hear(asking.answer(LAME_DUCK, is_news=True), ADDRESS)
    assert asking.told == [SERVING, LAME_DUCK]
    assert asking.statistics().pushed == 1
    assert asking.statistics().disbelieved == 1


async def test_after_news_a_backend_is_asked_often_again(asking: Asking) -> None:
    asking.state = SERVING
    await asking.ask()
    await asyncio.sleep(3600)
    asking.hear(asking.answer(LAME_DUCK, is_news=True), ADDRESS)
    asked = len(asking.sent)
    await asyncio.sleep(SOON)
    assert len(asking.sent) > asked  # pauses vary


async def test_news_overtake_the_answer_to_the_same_probe(asking: Asking) -> None:
    """The network may turn them round; the answer is then the older word."""
    await asking.ask()
    late = asking.answer(SERVING)
    asking.hear(asking.answer(LAME_DUCK, is_news=True), ADDRESS)
    asking.hear(late, ADDRESS)
    await asyncio.sleep(UDP.timeout + PAUSE)
    assert asking.told == [LAME_DUCK]
    assert len(asking.sent) == 1


async def test_news_count_for_any_probe_since_the_last_answer(asking: Asking) -> None:
    """Those after the one that the task saw may have been lost."""
    await asking.ask()
    first = asking.nonce
    await asyncio.sleep(UDP.timeout + PAUSE)
    assert asking.nonce != first
    asking.hear(asking.answer(LAME_DUCK, first, is_news=True), ADDRESS)
    assert asking.told == [LAME_DUCK]
    asking.hear(asking.answer(LAME_DUCK), ADDRESS)
    assert asking.told == [LAME_DUCK, LAME_DUCK]


async def test_news_do_not_count_for_a_probe_before_the_last_answer(
    asking: Asking,
) -> None:
    asking.state = SERVING
    await asking.ask()
    await asyncio.sleep(TURN)
    old = asking.nonce
    await asyncio.sleep(LATER)
    asking.hear(asking.answer(LAME_DUCK, old, is_news=True), ADDRESS)
    assert asking.told == [SERVING, SERVING]


async def test_an_answer_is_believed_once_and_in_time_only(asking: Asking) -> None:
    await asking.ask()
    late = asking.answer(LAME_DUCK)
    await asyncio.sleep(UDP.timeout + PAUSE)
    asking.hear(late, ADDRESS)
    assert asking.told == []
    soon = asking.answer(SERVING)
    for _ in range(3):
        asking.hear(soon, ADDRESS)
    assert asking.told == [SERVING]
    assert asking.statistics().disbelieved == 3


async def test_an_answer_after_silence_was_told_is_too_late(asking: Asking) -> None:
    await asking.ask()
    await asyncio.sleep(LATEST)
    asking.hear(asking.answer(SERVING), ADDRESS)
    assert asking.told == [f"no answer to {UDP.probes} probes by UDP"]


async def test_an_answer_from_elsewhere_is_not_believed(asking: Asking) -> None:
    await asking.ask()
    await asking.ask(ELSEWHERE[0])
    for state, is_news in ((SERVING, False), (LAME_DUCK, True)):
        said = asking.answer(state, asking.sent[0][1], is_news=is_news)
        for address in (ELSEWHERE, (HOST, PORT + 1)):
            asking.hear(said, address)
    assert asking.told == []
    assert asking.statistics().disbelieved == 4


async def test_an_answer_to_no_probe_of_ours_is_not_believed(asking: Asking) -> None:
    await asking.ask()
    for nonce in (0, asking.nonce ^ 1, 2**64 - 1):
        for is_news in (False, True):
            said = asking.answer(LAME_DUCK, nonce, is_news=is_news)
            asking.hear(said, ADDRESS)
    asking.hear(datagram.probe(asking.nonce), ADDRESS)
    asking.hear(b"nonsense", ADDRESS)
    assert asking.told == []
    assert asking.statistics().disbelieved == 8


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(SECRET, b""), (SECRET, b"another secret"), ("", SECRET.encode())],
)
async def test_an_answer_with_another_secret_is_not_believed(
    ours: str, theirs: bytes
) -> None:
    asking = Asking(ours)
    await asking.ask()
    asking.key = theirs
    asking.hear(asking.answer(LAME_DUCK), ADDRESS)
    asking.hear(asking.answer(LAME_DUCK, is_news=True), ADDRESS)
    assert asking.told == []
    asking.key = ours.encode()
    asking.hear(asking.answer(SERVING), ADDRESS)
    assert asking.told == [SERVING]
    asking.close()


async def test_many_backends_are_asked_no_faster_than_the_rate(asking: Asking) -> None:
    asking.state = SERVING
    count = 10 * UDP.at_once
    for n in range(count):
        await asking.ask(f"192.0.2.{n}")
    await asyncio.sleep(600)
    assert len({watch for _, _, watch in asking.sent}) == count
    times = [time for time, _, _ in asking.sent]
    for first, last in zip(times, times[UDP.at_once :], strict=False):
        assert first < last
    for first, last in zip(times, times[2 * UDP.at_once :], strict=False):
        assert last - first >= PAUSE


IDLE_AFTER = 300.0


class Calling:
    """A channel that calls, and asks its backends, all inactive, as calls allow."""

    def __init__(self, backends: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.demand = Demand(IDLE_AFTER, self.loop.time())
        self.asking = Asking(gap=lambda: self.demand.gap(self.loop.time()))
        self.asking.state = SERVING
        self.calls = self.watched = 0
        self.longest_pause = 0.0  # between two calls
        self.backends = [self.watch() for _ in range(backends)]

    def watch(self) -> Watch:
        self.watched += 1
        return self.asking.watch(HOST, PORT, self.asking.tell)

    def sleep_again(self) -> None:
        """One that was woken by a call is watched anew."""
        self.asking.unwatch(self.backends.pop(0))
        self.backends.append(self.watch())

    async def call(self, gap: float, until: float, rng: Random) -> None:
        """Once in a `gap`, as chance has it."""
        while (pause := rng.expovariate(1 / gap)) < until - self.loop.time():
            await asyncio.sleep(pause)
            self.longest_pause = max(self.longest_pause, pause)
            self.calls += 1
            self.demand.worth(self.calls, self.loop.time())
            self.asking.hurry()
            if gap > IDLE_AFTER:
                self.loop.call_later(IDLE_AFTER, self.sleep_again)
        await asyncio.sleep(until - self.loop.time())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("gap", "backends"), [(600.0, 20), (60.0, 200), (10.0, 50)])
async def test_but_for_the_first_of_each_watch_probes_are_paid_for_by_calls(
    gap: float, backends: int, seed: int
) -> None:
    day = 24 * 3600.0
    assert backends * gap < UDP.rarest_period
    calling = Calling(backends)
    await calling.call(gap, day, Random(seed))
    probes = len(calling.asking.sent) - calling.watched
    assert day / UDP.rarest_period < probes <= calling.calls
    calling.asking.close()


async def test_who_does_not_call_asks_as_rarely_as_can_be() -> None:
    calling = Calling(1)
    await calling.call(60.0, 3600.0, Random(7))
    await asyncio.sleep(20 * UDP.rarest_period)
    for gap in calling.asking.gaps()[-10:]:
        assert abs(gap - UDP.rarest_period) <= UDP.rarest_period * UDP.jitter + PAUSE
    calling.asking.close()


async def test_who_calls_often_again_asks_often_again() -> None:
    """Without waiting for the end of what was a long wait.

    So it is also for a wait that began in a long pause between two calls, and was
    taken for one that lasts: the next call ends it.
    """
    calling = Calling(20)
    await asyncio.sleep(24 * 3600)
    now = calling.loop.time()
    backends, rate = len(calling.backends), 1.0
    await calling.call(1 / rate, now + 3 * 3600, Random(7))
    calls_needed = backends * MEMORY / UDP.longest_period
    settled = now + 1.5 * calls_needed / rate + LATER  # as some are forgotten again
    for backend in calling.backends:
        times = [t for t, _, w in calling.asking.sent if w is backend and t > now]
        assert times[0] <= settled
        longest = max(b - a for a, b in pairwise(times) if a > settled)
        assert longest <= LATER + calling.longest_pause
    calling.asking.close()


async def test_a_silent_one_is_asked_again_when_there_is_reason_to(
    asking: Asking,
) -> None:
    watch = await asking.ask()
    await asyncio.sleep(LATEST)
    asked = len(asking.sent)
    asking.state = SERVING
    for _ in range(2):
        asking.ask_again(watch)
        await asyncio.sleep(PAUSE + TURN)
    assert len(asking.sent) == asked + 1
    assert asking.told[-1] is SERVING


async def test_one_silent_backend_of_many_is_noticed_as_fast(asking: Asking) -> None:
    asking.state = SERVING
    silent = await asking.ask("192.0.3.1")
    for n in range(200):
        await asking.ask(f"192.0.2.{n}")
    await asyncio.sleep(600)
    asking.told.clear()
    answered = asking.send

    def send(data: bytes, watch: Watch) -> None:
        if watch is not silent:
            answered(data, watch)

    asking.send = send  # type: ignore[method-assign]
    longest = UDP.longest_period * (1 + UDP.jitter)
    await asyncio.sleep(
        longest + UDP.probes * (UDP.timeout + 200 / UDP.at_once * PAUSE)
    )
    assert f"no answer to {UDP.probes} probes by UDP" in asking.told


async def test_who_is_not_watched_any_more_is_not_asked_and_not_told(
    asking: Asking,
) -> None:
    watches = [await asking.ask(HOST) for _ in range(3)]  # one is asked, two in line
    last = asking.answer(LAME_DUCK, is_news=True)
    for watch in watches:
        asking.unwatch(watch)
        asking.unwatch(watch)
    asking.hear(last, ADDRESS)
    await asyncio.sleep(3600)
    assert len(asking.sent) == 1
    assert asking.told == []
    assert asking.statistics() == ProberStatistics(0, 0, 1, 0, 0, 1)


async def test_a_watcher_may_end_the_watch_when_it_is_told(asking: Asking) -> None:
    told = []

    def tell(state: TaskState | None, report: object, reason: str = "") -> None:
        told.append(state)
        asking.unwatch(watch)

    for asking.state in (SERVING, None):
        watch = asking.watch(HOST, PORT, tell)
        await asyncio.sleep(3600)
    assert told == [SERVING, None]
    assert asking.statistics().watched == 0


async def test_nothing_is_kept_of_answered_and_of_old_probes(asking: Asking) -> None:
    await asking.ask()
    await asking.ask(ELSEWHERE[0])
    await asyncio.sleep(7200)
    assert len(asking._by_nonce) == 2 * (UDP.probes + 1)
    asking.state = SERVING
    await asyncio.sleep(7200)
    assert len(asking._by_nonce) == 2
    for watch in list(asking._watches):
        asking.unwatch(watch)
    assert asking._by_nonce == {}


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("name.example", PORT),
        ("", PORT),
        ("192.0.2.256", PORT),
        (HOST, 0),
        (HOST, -1),
        (HOST, 65536),
    ],
)
async def test_only_ip_addresses_and_ports_can_be_watched(
    asking: Asking, host: str, port: int
) -> None:
    with pytest.raises(ValueError, match=r"address|port"):
        asking.watch(host, port, asking.tell)
    assert asking.statistics().watched == 0


async def test_a_watch_says_what_it_knows(asking: Asking) -> None:
    watch = await asking.ask()
    assert repr(watch) == f"<{HOST}:{PORT} not heard yet>"
    asking.hear(asking.answer(LAME_DUCK), ADDRESS)
    assert repr(watch) == f"<{HOST}:{PORT} lame duck>"
    assert repr(asking) == "<1 watched, 0 silent, 1 probes>"
    await asyncio.sleep(3600)
    assert repr(watch) == f"<{HOST}:{PORT} silent>"


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("192.0.2.1:50051", "192.0.2.1"),
        ("[2001:db8::1]:50051", "2001:db8::1"),
        ("unix:/tmp/socket", None),
        ("unix:50051", None),
    ],
)
async def test_an_endpoint_is_located_by_its_ip_address(
    address: str, host: str | None
) -> None:
    assert await locate(Endpoint(address)) == host
