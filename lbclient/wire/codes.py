"""gRPC's statuses by number, and what a status alone says of a backend.

`outliers` corrects that by comparing backends: a status that counts as served or
abandoned here is a failure there if only one backend gives it.
"""

from grpc import StatusCode

from lbclient.core.model import Verdict
from lbclient.core.outliers.method_latencies import Lateness
from lbclient.core.outliers.outlier_judgement import Against
from lbclient.core.retries.ending import VERDICTS


def verdict_of(code: StatusCode) -> Verdict:
    """
    >>> verdict_of(StatusCode.NOT_FOUND).value, verdict_of(StatusCode.INTERNAL).value
    ('served', 'failed')
    """
    return VERDICTS[code.value[0]]


STATUS_OF_NUMBER = {code.value[0]: code for code in StatusCode}


def told_against(against: Against | Lateness) -> str:
    """Why a backend is ejected, in words. Counts are rounded, as they fade with time.

    >>> told_against(Against(12, 4.5, 4.5, 0.0, 211.9))
    'UNIMPLEMENTED to 5 of its last 5 calls, and to 0 of 212 of the other backends'
    >>> told_against(Lateness(0.1934, 0.0123, 0.014))
    'its last calls took 193 ms, usually 12.3 ms, and those of the other backends 14 ms'
    """
    if isinstance(against, Lateness):
        late, usual, elsewhere = (f"{1000.0 * each:.3g} ms" for each in against)
        return (
            f"its last calls took {late}, usually {usual}, and those of the other "
            f"backends {elsewhere}"
        )
    status = STATUS_OF_NUMBER[against.status].name
    own, of = _whole(against.own), _whole(against.of_own)
    others, of_others = _whole(against.others), _whole(against.of_others)
    return (
        f"{status} to {own} of its last {of} calls, and to {others} of {of_others} of "
        f"the other backends"
    )


def _whole(count: float) -> int:
    return int(count + 0.5)  # half up; `round` makes 4.5 a 4
