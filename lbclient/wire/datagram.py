"""The bytes of a UDP health check: a probe asks, an answer tells state and load.

An answer is believed for its nonce, so whoever has not seen the probe cannot forge
it; with a shared secret, whoever does not know that cannot either. A probe is padded
so that its answer and the news that may follow are together no larger: a task cannot
be made to flood somebody who did not ask. One version, one length each: all else is
not ours. Numbers are whole, so none of them can be NaN.

    probe   magic 4 | kind 1 | 0 * 3           | nonce 8 | session 8 | 0 * 104 | seal 16
    others  magic 4 | kind 1 | state 1 | 0 * 2 | nonce 8 | load 16 | seal 16

A session is the number of a secret that a task gave to one client. 0: the secret is
that of the settings, or there is none.
"""

from hmac import compare_digest, digest
from math import ceil
from struct import Struct
from typing import NamedTuple

from lbclient.core.model import LoadReport, TaskState

MAGIC = b"LBH\x01"  # the last byte is the version
PROBE, ANSWER, NEWS = 1, 2, 3  # kinds of datagrams, on the wire

SEAL_SIZE = 16  # bytes; RFC 2104, section 5: half of a hash, or 80 bits, at least
_PROBE = Struct("!4sB3xQQ")
_ANSWER = Struct("!4sBB2xQIIII")
ANSWER_SIZE = _ANSWER.size + SEAL_SIZE

HEADERS = 40 + 8  # bytes that IPv6 and UDP put before each datagram
# With headers, a probe is as large as an answer and the one push that it allows.
PROBE_SIZE = 2 * (HEADERS + ANSWER_SIZE) - HEADERS
_PADDING = bytes(PROBE_SIZE - _PROBE.size - SEAL_SIZE)

UNKNOWN = 2**32 - 1  # for a number of active requests
_STATES = {state.value: state for state in TaskState}


class Seal(NamedTuple):
    """What a client and a task seal with: the secret, and its session if it has one."""

    secret: bytes = b""
    session: int = 0


class Answer(NamedTuple):
    """What a task says; `is_news` where nobody asked it just then."""

    nonce: int
    state: TaskState
    report: LoadReport
    is_news: bool


def probe(nonce: int, secret: bytes = b"", session: int = 0) -> bytes:
    """Asks. `nonce` has 64 bits, all of them random.

    >>> nonce_of(probe(7)), len(probe(7)), ANSWER_SIZE
    (7, 144, 48)
    """
    return _seal(_PROBE.pack(MAGIC, PROBE, nonce, session) + _PADDING, secret)


def nonce_of(data: bytes) -> int | None:
    """The nonce of a probe, whoever sealed it; None for anything else."""
    if len(data) != PROBE_SIZE or data[_PROBE.size : -SEAL_SIZE] != _PADDING:
        return None
    magic, kind, nonce, _ = _PROBE.unpack_from(data)
    return nonce if (magic, kind) == (MAGIC, PROBE) and not any(data[5:8]) else None


def session_of(data: bytes) -> int:
    """The session of what `nonce_of` takes for a probe.

    >>> session_of(probe(7)), session_of(probe(7, b"a secret", 3))
    (0, 3)
    """
    session: int = _PROBE.unpack_from(data)[3]
    return session


def answer(
    nonce: int,
    state: TaskState,
    report: LoadReport,
    secret: bytes = b"",
    *,
    is_news: bool = False,
) -> bytes:
    """Tells, in thousandths; what is unsound is sent as unknown."""
    active = UNKNOWN if report.active is None else _whole(report.active)
    body = _ANSWER.pack(
        MAGIC,
        NEWS if is_news else ANSWER,
        state.value,
        nonce,
        # Rounded up: 0 is unknown, and not idle.
        ceil(_bounded(report.utilization * 1000)),
        _whole(report.qps * 1000),
        _whole(report.eps * 1000),
        active,
    )
    return _seal(body, secret)


def parse_answer(data: bytes) -> Answer | None:
    """What an answer says, whoever sealed it; None for anything else."""
    if len(data) != ANSWER_SIZE or any(data[6:8]):
        return None
    magic, kind, number, nonce, utilization, qps, eps, active = _ANSWER.unpack_from(
        data
    )
    state = _STATES.get(number)
    if magic != MAGIC or kind not in (ANSWER, NEWS) or state is None:
        return None
    report = LoadReport(
        utilization / 1000,
        qps / 1000,
        eps / 1000,
        None if active == UNKNOWN else active,
        state=state,
    )
    return Answer(nonce, state, report, kind == NEWS)


def is_sealed(data: bytes, secret: bytes) -> bool:
    """Whether the sender knew `secret`.

    Without one the seal is zeros, and must be: two sides of which only one has a
    secret do not understand each other.
    """
    return compare_digest(data, _seal(data[:-SEAL_SIZE], secret))


def _seal(body: bytes, secret: bytes) -> bytes:
    code = digest(secret, body, "sha256") if secret else bytes(SEAL_SIZE)
    return body + code[:SEAL_SIZE]


def _whole(number: float) -> int:
    return int(_bounded(number))


def _bounded(number: float) -> float:
    """NaN, which is not above 0, becomes 0 as negative numbers do."""
    return min(number, UNKNOWN) if number > 0 else 0
