"""What a task answers to UDP health checks: how much, to whom, and what it keeps."""

import pytest

from lbclient.client.health.udp import TUNING as UDP
from lbclient.core.model import LoadReport, TaskState
from lbclient.server.report.udp import (
    ANSWER_RATE,
    RECENT_AFTER,
    RECENT_PROBERS,
    Responder,
    host_of,
)
from lbclient.wire import datagram

SECRET = "a secret that both sides know"
REPORT = LoadReport(0.5, 10.0, 0.0, 3)


class Asked:
    """A responder at a time that we set, in a state that we set."""

    def __init__(self, secret: str = "") -> None:
        self.now = 0.0
        self.state = TaskState.SERVING
        self.responder: Responder[object] = Responder(
            lambda: (self.state, REPORT), lambda: self.now, secret
        )

    def ask(self, nonce: int, peer: object = "a", secret: bytes = b"") -> object:
        data = self.responder.answer(datagram.probe(nonce, secret), peer)
        return None if data is None else datagram.parse_answer(data)

    def news(self, count: int = 100) -> dict[object, datagram.Answer | None]:
        told = self.responder.news(count)
        return {peer: datagram.parse_answer(data) for peer, data in told}


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_a_probe_is_answered_with_its_nonce_the_state_and_the_load(
    asked: Asked,
) -> None:
    for state in TaskState:
        asked.state = state
        report = REPORT._replace(state=state)
        assert asked.ask(7) == datagram.Answer(7, state, report, False)


def test_what_is_no_probe_is_counted_and_not_answered(asked: Asked) -> None:
    answer = datagram.answer(7, TaskState.SERVING, REPORT)
    for data in (b"", b"hello", answer, bytes(datagram.PROBE_SIZE)):
        assert asked.responder.answer(data, "a") is None
    assert asked.responder.malformed == 4
    assert asked.responder.answered == 0


def test_with_a_secret_only_those_who_know_it_are_answered() -> None:
    asked = Asked(SECRET)
    assert asked.ask(1) is None
    assert asked.ask(2, secret=b"another secret") is None
    assert asked.responder.forged == 2
    data = asked.responder.answer(datagram.probe(3, SECRET.encode()), "a")
    assert data is not None
    assert datagram.is_sealed(data, SECRET.encode())


def test_without_a_secret_who_wants_one_is_not_answered(asked: Asked) -> None:
    assert asked.ask(1, secret=SECRET.encode()) is None
    assert asked.responder.forged == 1


def test_no_more_is_answered_in_a_second_than_the_rate(asked: Asked) -> None:
    for second in range(3):
        asked.now = second
        answers = [asked.ask(n) for n in range(2 * int(ANSWER_RATE))]
        assert sum(answer is not None for answer in answers) == ANSWER_RATE
    assert asked.responder.limited == 3 * ANSWER_RATE


def test_what_is_forged_uses_up_no_answers() -> None:
    asked = Asked(SECRET)
    for n in range(2 * int(ANSWER_RATE)):
        asked.ask(n, secret=b"another secret")
    assert asked.ask(1, secret=SECRET.encode()) is not None


def test_a_long_silence_saves_up_no_more_than_a_second_of_answers(
    asked: Asked,
) -> None:
    asked.now = 3600.0
    answers = [asked.ask(n) for n in range(2 * int(ANSWER_RATE))]
    assert sum(answer is not None for answer in answers) == ANSWER_RATE


def test_news_repeat_the_last_nonce_of_each_prober_once(asked: Asked) -> None:
    for nonce, peer in ((1, "a"), (2, "b"), (3, "a")):
        asked.ask(nonce, peer)
    asked.state = TaskState.LAME_DUCK
    report = REPORT._replace(state=TaskState.LAME_DUCK)
    assert list(asked.news().items()) == [
        (peer, datagram.Answer(nonce, TaskState.LAME_DUCK, report, True))
        for nonce, peer in ((3, "a"), (2, "b"))
    ]
    assert asked.news() == {}
    assert asked.responder.pushed == 2


def test_who_has_been_told_by_an_answer_gets_no_news(asked: Asked) -> None:
    asked.ask(1, "a")
    asked.state = TaskState.LAME_DUCK
    asked.ask(2, "a")
    asked.ask(3, "b")
    assert asked.news() == {}


def test_who_was_not_answered_gets_no_news(asked: Asked) -> None:
    for n in range(int(ANSWER_RATE)):
        asked.ask(n, "a")
    asked.ask(1, "b")
    assert list(asked.news()) == ["a"]


def test_who_asked_too_long_ago_gets_no_news(asked: Asked) -> None:
    for nonce, peer in enumerate("abc"):
        asked.ask(nonce, peer)
        asked.now += 1.0
    asked.now += RECENT_AFTER - 1.0
    assert list(asked.news()) == ["c"]
    assert not asked.responder.has_news()


def test_a_prober_is_remembered_until_it_asks_again_however_seldom(
    asked: Asked,
) -> None:
    """A probe may be lost as often as makes no silence."""
    seldom = UDP.rarest_period * (1 + UDP.jitter) + UDP.probes * 2 * UDP.timeout
    asked.ask(1)
    asked.now += seldom
    assert list(asked.news()) == ["a"]


def test_news_come_in_parts_and_the_latest_prober_first(asked: Asked) -> None:
    for peer in range(5):
        asked.ask(peer, peer)
    parts = [list(asked.news(2)) for _ in range(3)]
    assert parts == [[4, 3], [2, 1], [0]]


def test_only_so_many_probers_are_remembered(asked: Asked) -> None:
    probers = RECENT_PROBERS + 7
    for peer in range(probers):
        asked.now += 1 / ANSWER_RATE
        asked.ask(peer, peer)
    assert list(asked.news(probers)) == list(reversed(range(7, probers)))


def test_a_responder_says_what_it_did(asked: Asked) -> None:
    asked.ask(1)
    asked.responder.answer(b"nonsense", "a")
    assert repr(asked.responder) == "<1 answered, 1 dropped, 1 recent>"


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("127.0.0.1:50051", "127.0.0.1"),
        ("[::]:0", "::"),
        ("[::1]:50051", "::1"),
        (":50051", ""),
        ("localhost:50051", "localhost"),
        ("ipv4:127.0.0.1:50051", "127.0.0.1"),
        ("ipv6:[::1]:50051", "::1"),
        ("dns:///localhost:50051", "localhost"),
        ("dns:localhost:50051", "localhost"),
        ("unix:/tmp/socket", None),
        ("unix-abstract:name", None),
        ("vsock:1:50051", None),
    ],
)
def test_the_host_of_a_port_is_found(address: str, host: str | None) -> None:
    assert host_of(address) == host
