"""UDP health checks under whatever bytes: none of them gets more than it brings."""

from hypothesis import given
from hypothesis import strategies as st

from lbclient.core.model import LoadReport, TaskState
from lbclient.server.report.udp import Responder
from lbclient.server.report.udp_sessions import UdpSessions
from lbclient.wire import datagram

SECRETS = st.sampled_from(["", "a secret that both sides know"])
STATES = st.sampled_from(list(TaskState))
NONCES = st.integers(0, 2**64 - 1)
NUMBERS = st.floats()
BENT = st.integers(1, 255)  # of a byte, the bits that are changed
SESSIONS = UdpSessions(lambda: 0.0)
SESSION = SESSIONS.issue()
REPORTS = st.builds(
    LoadReport, NUMBERS, NUMBERS, NUMBERS, st.none() | st.integers(-1, 2**70)
)


@st.composite
def datagrams(draw: st.DrawFn) -> bytes:
    """Any bytes, and sound probes and answers, some of them bent a little."""
    secret = draw(SECRETS).encode()
    session = st.sampled_from([0, SESSION.id, SESSION.id + 1, 2**64 - 1])
    sealed_with = st.sampled_from([secret, SESSION.secret])
    probe = st.builds(datagram.probe, NONCES, sealed_with, session)
    answer = st.builds(
        datagram.answer,
        NONCES,
        STATES,
        REPORTS,
        st.just(secret),
        is_news=st.booleans(),
    )
    data = bytearray(draw(st.binary(max_size=300) | probe | answer))
    for _ in range(draw(st.integers(0, 2)) if data else 0):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


@given(
    st.lists(datagrams(), max_size=10),
    SECRETS,
    st.sampled_from([None, SESSIONS]),
    STATES,
    REPORTS,
)
def test_no_answer_is_larger_than_its_probe(
    sent: list[bytes],
    secret: str,
    sessions: UdpSessions | None,
    state: TaskState,
    report: LoadReport,
) -> None:
    """Nor are an answer and the news after it together, all headers counted."""
    responder: Responder[int] = Responder(
        lambda: (state, report), lambda: 0.0, secret, sessions
    )
    cost = {}
    for peer, data in enumerate(sent):
        said = responder.answer(data, peer)
        cost[peer] = 0 if said is None else datagram.HEADERS + len(said)
        assert said is None or len(said) <= len(data)
    for peer, said in responder.news(len(sent)):
        cost[peer] += datagram.HEADERS + len(said)
    for peer, data in enumerate(sent):
        assert cost[peer] <= datagram.HEADERS + len(data)


@given(SECRETS, NONCES, STATES, REPORTS, st.booleans())
def test_every_report_arrives_as_a_sound_one(
    secret: str, nonce: int, state: TaskState, report: LoadReport, is_news: bool
) -> None:
    data = datagram.answer(nonce, state, report, secret.encode(), is_news=is_news)
    read = datagram.parse_answer(data)
    assert read is not None
    assert (read.nonce, read.state, read.is_news) == (nonce, state, is_news)
    for number in read.report[:3]:
        assert 0.0 <= number <= datagram.UNKNOWN / 1000
    assert read.report.active is None or 0 <= read.report.active < datagram.UNKNOWN


@given(NONCES, STATES, REPORTS, SECRETS, SECRETS, st.integers(0, 2**20), BENT)
def test_nothing_is_believed_that_another_secret_sealed(
    nonce: int,
    state: TaskState,
    report: LoadReport,
    ours: str,
    theirs: str,
    place: int,
    bent: int,
) -> None:
    """Nor what was sealed with ours and changed after that."""
    sent = datagram.answer(nonce, state, report, theirs.encode(), is_news=False)
    assert datagram.is_sealed(sent, ours.encode()) == (ours == theirs)
    changed = bytearray(sent)
    changed[place % len(sent)] ^= bent
    assert not theirs or not datagram.is_sealed(bytes(changed), theirs.encode())
