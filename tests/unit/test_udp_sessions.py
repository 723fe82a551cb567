"""Sessions of UDP health checks: whose probes a task answers, and for how long."""

import pytest

from lbclient.core.model import LoadReport, TaskState
from lbclient.server.report.udp import Responder
from lbclient.server.report.udp_sessions import SESSION_LIFE, UdpSessions
from lbclient.v1 import health_pb2
from lbclient.wire import datagram

SERVING, LAME_DUCK = TaskState.SERVING, TaskState.LAME_DUCK
REPORT = LoadReport(0.5, 10.0, 1.0, 3)
NO_LOAD = LoadReport()


class Issuing:
    """Sessions, and who answers to them, at a time and in a state that we set."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.state = SERVING
        self.sessions = UdpSessions(lambda: self.now)
        self.responder: Responder[str] = Responder(
            lambda: (self.state, REPORT), lambda: self.now, sessions=self.sessions
        )

    def ask(
        self, session: health_pb2.UdpSession, nonce: int = 7, peer: str = "a"
    ) -> datagram.Answer | None:
        """What is answered, if it is sealed as the session's answers are."""
        probe = datagram.probe(nonce, session.secret, session.id)
        data = self.responder.answer(probe, peer)
        if data is None or not datagram.is_sealed(data, session.secret):
            return None
        return datagram.parse_answer(data)


@pytest.fixture
def issuing() -> Issuing:
    return Issuing()


def test_who_was_given_a_session_is_told_the_state_and_no_load(
    issuing: Issuing,
) -> None:
    """Anybody can read a datagram, but not the reports over TLS."""
    for state in TaskState:
        issuing.state = state
        report = NO_LOAD._replace(state=state)
        said = datagram.Answer(7, state, report, False)
        assert issuing.ask(issuing.sessions.issue()) == said


def test_each_session_has_a_number_and_a_secret_of_its_own(issuing: Issuing) -> None:
    issued = [issuing.sessions.issue() for _ in range(1000)]
    for kind in ({one.id for one in issued}, {one.secret for one in issued}):
        assert len(kind) == len(issued)
    assert all(0 < one.id < 2**64 and len(one.secret) == 32 for one in issued)


def test_without_the_secret_of_its_session_a_probe_is_not_answered(
    issuing: Issuing,
) -> None:
    mine, other = issuing.sessions.issue(), issuing.sessions.issue()
    before_a_restart = Issuing().sessions.issue()
    Session = health_pb2.UdpSession
    wrong = [
        Session(),
        Session(id=mine.id),
        Session(secret=mine.secret),
        Session(id=mine.id, secret=other.secret),
        Session(id=mine.id + 1, secret=mine.secret),
        Session(id=2**64 - 1, secret=mine.secret),
        before_a_restart,
    ]
    for session in wrong:
        assert issuing.ask(session) is None
    assert issuing.responder.forged == len(wrong)
    assert not issuing.responder.has_news()
    assert issuing.ask(mine) is not None


def test_without_sessions_a_probe_of_one_is_not_answered(issuing: Issuing) -> None:
    session = issuing.sessions.issue()
    for secret in ("", "a secret that both sides know"):
        responder: Responder[str] = Responder(
            lambda: (SERVING, REPORT), lambda: 0.0, secret
        )
        for sealed_with in (session.secret, secret.encode()):
            probe = datagram.probe(7, sealed_with, session.id)
            assert responder.answer(probe, "a") is None


def test_a_session_lasts_a_day(issuing: Issuing) -> None:
    session = issuing.sessions.issue()
    issuing.now += SESSION_LIFE - 1.0
    assert issuing.ask(session) is not None
    issuing.now += 1.0
    assert issuing.ask(session) is None
    assert issuing.ask(issuing.sessions.issue()) is not None


def test_news_are_sealed_for_each_prober_also_when_its_session_is_over(
    issuing: Issuing,
) -> None:
    """A prober may have asked hours ago, and does not know that it is over."""
    sessions = {peer: issuing.sessions.issue() for peer in "abc"}
    issuing.now += SESSION_LIFE - 2.0
    for nonce, (peer, session) in enumerate(sessions.items()):
        issuing.ask(session, nonce, peer)
    issuing.now += 3600.0
    issuing.state = LAME_DUCK
    told = dict(issuing.responder.news(100))
    report = NO_LOAD._replace(state=LAME_DUCK)
    for nonce, (peer, session) in enumerate(sessions.items()):
        said = datagram.Answer(nonce, LAME_DUCK, report, True)
        assert datagram.parse_answer(told[peer]) == said
        assert datagram.is_sealed(told[peer], session.secret)


def test_nothing_is_kept_of_a_session(issuing: Issuing) -> None:
    before = dict(vars(issuing.sessions))
    for _ in range(100):
        issuing.ask(issuing.sessions.issue())
    assert vars(issuing.sessions) == before
