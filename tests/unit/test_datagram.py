"""UDP health checks as bytes: what is understood, and what never is."""

import hashlib
import hmac
from itertools import product
from math import inf, nan

import pytest

from lbclient.core.model import LoadReport, TaskState
from lbclient.wire import datagram
from lbclient.wire.datagram import ANSWER_SIZE, HEADERS, PROBE_SIZE, UNKNOWN

SECRET = b"a secret that both sides know"
OTHER = b"a secret that only one side knows"
REPORT = LoadReport(0.625, 12.5, 0.25, 7)
NONCES = (0, 1, 0x0123456789ABCDEF, 2**64 - 1)


def said(report: LoadReport) -> LoadReport:
    read = datagram.parse_answer(datagram.answer(1, TaskState.SERVING, report))
    assert read is not None
    return read.report


@pytest.mark.parametrize("nonce", NONCES)
@pytest.mark.parametrize("secret", [b"", SECRET])
def test_a_probe_is_read_as_it_was_meant(nonce: int, secret: bytes) -> None:
    data = datagram.probe(nonce, secret)
    assert len(data) == PROBE_SIZE
    assert datagram.nonce_of(data) == nonce
    assert datagram.is_sealed(data, secret)
    assert datagram.parse_answer(data) is None


@pytest.mark.parametrize("state", TaskState)
@pytest.mark.parametrize("is_news", [False, True])
def test_an_answer_is_read_as_it_was_meant(state: TaskState, is_news: bool) -> None:
    for nonce, secret in product(NONCES, (b"", SECRET)):
        data = datagram.answer(nonce, state, REPORT, secret, is_news=is_news)
        assert len(data) == ANSWER_SIZE
        read = datagram.parse_answer(data)
        assert read == (nonce, state, REPORT._replace(state=state), is_news)
        assert datagram.is_sealed(data, secret)
        assert datagram.nonce_of(data) is None


def test_a_probe_outweighs_its_answer_and_the_news_with_all_headers() -> None:
    assert 2 * (ANSWER_SIZE + HEADERS) <= PROBE_SIZE + HEADERS


@pytest.mark.parametrize("number", [nan, inf, -inf, -1.0])
def test_what_is_unsound_arrives_as_a_sound_number(number: float) -> None:
    report = said(LoadReport(number, number, number, 1))
    for sent in report[:3]:
        assert isinstance(sent, float)
        assert 0.0 <= sent <= UNKNOWN / 1000


def test_numbers_beyond_the_field_arrive_as_the_largest() -> None:
    report = said(LoadReport(1e300, 1e7, 1e7, 2**40))
    assert report.utilization == report.qps == report.eps == UNKNOWN / 1000
    assert report.active is None


def test_what_is_nearly_idle_does_not_arrive_as_unknown() -> None:
    assert said(LoadReport(1e-9)).utilization == 0.001
    assert said(LoadReport(0.0)).utilization == 0.0


def test_an_unknown_number_of_requests_stays_unknown() -> None:
    assert said(LoadReport(active=None)).active is None
    assert said(LoadReport(active=0)).active == 0


SECRETS = [b"", SECRET, OTHER]


@pytest.mark.parametrize(
    ("ours", "theirs"), [p for p in product(SECRETS, SECRETS) if p[0] != p[1]]
)
def test_two_secrets_do_not_understand_each_other(ours: bytes, theirs: bytes) -> None:
    """Nor does one that has a secret understand one that has none."""
    assert not datagram.is_sealed(datagram.probe(7, theirs), ours)
    answer = datagram.answer(7, TaskState.SERVING, REPORT, theirs)
    assert not datagram.is_sealed(answer, ours)


@pytest.mark.parametrize("secret", [b"", SECRET])
def test_no_bit_of_a_probe_can_be_changed_but_the_numbers_of_an_unsealed_one(
    secret: bytes,
) -> None:
    data = datagram.probe(7, secret)
    numbers_at = range(8 * 8, 24 * 8)  # the nonce and the session
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        nonce = datagram.nonce_of(bytes(changed))
        is_believed = nonce is not None and datagram.is_sealed(bytes(changed), secret)
        assert is_believed == (not secret and bit in numbers_at)
        numbers = nonce, datagram.session_of(bytes(changed))
        assert not is_believed or numbers != (7, 0)


def test_no_bit_of_a_sealed_answer_can_be_changed() -> None:
    data = datagram.answer(7, TaskState.SERVING, REPORT, SECRET)
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        assert not datagram.is_sealed(bytes(changed), SECRET)


@pytest.mark.parametrize("secret", [b"", SECRET])
def test_every_other_length_is_refused(secret: bytes) -> None:
    probe = datagram.probe(7, secret)
    answer = datagram.answer(7, TaskState.SERVING, REPORT, secret)
    for data in (probe, answer):
        for size in range(2 * PROBE_SIZE):
            cut = (data + bytes(2 * PROBE_SIZE))[:size]
            assert size == PROBE_SIZE or datagram.nonce_of(cut) is None
            assert size == ANSWER_SIZE or datagram.parse_answer(cut) is None


def test_another_version_is_refused() -> None:
    assert datagram.nonce_of(b"LBH\x02" + datagram.probe(7)[4:]) is None
    answer = datagram.answer(7, TaskState.SERVING, REPORT)
    assert datagram.parse_answer(b"LBH\x02" + answer[4:]) is None


@pytest.mark.parametrize("number", [0, 4, 255])
def test_an_unknown_state_is_refused(number: int) -> None:
    data = bytearray(datagram.answer(7, TaskState.SERVING, REPORT))
    assert data[5] == TaskState.SERVING.value
    data[5] = number
    assert datagram.parse_answer(bytes(data)) is None


def test_an_answer_turned_into_news_is_not_sealed_any_more() -> None:
    data = bytearray(datagram.answer(7, TaskState.LAME_DUCK, REPORT, SECRET))
    assert data[4] == datagram.ANSWER
    data[4] = datagram.NEWS
    assert datagram.parse_answer(bytes(data)) is not None
    assert not datagram.is_sealed(bytes(data), SECRET)


def test_the_reserved_bits_of_an_answer_are_zero() -> None:
    data = datagram.answer(7, TaskState.SERVING, REPORT)
    for bit in range(6 * 8, 8 * 8):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        assert datagram.parse_answer(bytes(changed)) is None


def test_the_seal_is_half_of_an_hmac_of_all_before_it() -> None:
    for data in (
        datagram.probe(7, SECRET),
        datagram.answer(7, TaskState.SERVING, REPORT, SECRET),
    ):
        code = hmac.new(SECRET, data[:-16], hashlib.sha256).digest()
        assert data[-16:] == code[:16]


def test_the_layout_is_as_documented() -> None:
    """docs/health.md, for whoever writes another client or server."""
    nonce = bytes(range(1, 9))
    probe = b"LBH\x01\x01" + bytes(3) + nonce + bytes(128)
    assert datagram.probe(int.from_bytes(nonce)) == probe
    session = bytes(range(11, 19))
    sealed = datagram.probe(int.from_bytes(nonce), SECRET, int.from_bytes(session))
    assert sealed[:-16] == probe[:16] + session + bytes(104)
    load = b"".join(number.to_bytes(4) for number in (625, 12500, 250, 7))
    answer = b"LBH\x01\x02\x03" + bytes(2) + nonce + load + bytes(16)
    said = datagram.answer(int.from_bytes(nonce), TaskState.LAME_DUCK, REPORT)
    assert said == answer
