"""What a status says of the backend that sent it: one table for client and server.

The application's own refusals (NOT_FOUND, PERMISSION_DENIED, ...) are good service.
grpcio's native outlier detection counts every status but OK, and so ejects a
healthy backend for what its callers ask of it.
"""

from grpc import StatusCode

from lbclient.model import Verdict

_NOT_SERVED = {
    StatusCode.CANCELLED: Verdict.ABANDONED,
    StatusCode.RESOURCE_EXHAUSTED: Verdict.REJECTED,
    StatusCode.UNKNOWN: Verdict.FAILED,  # what an unhandled exception becomes
    StatusCode.DEADLINE_EXCEEDED: Verdict.FAILED,
    StatusCode.INTERNAL: Verdict.FAILED,
    StatusCode.UNAVAILABLE: Verdict.FAILED,
    StatusCode.DATA_LOSS: Verdict.FAILED,
}


def verdict_of(code: StatusCode) -> Verdict:
    """
    >>> verdict_of(StatusCode.NOT_FOUND).value, verdict_of(StatusCode.INTERNAL).value
    ('served', 'failed')
    """
    return _NOT_SERVED.get(code, Verdict.SERVED)


STATUS_OF_NUMBER = {code.value[0]: code for code in StatusCode}
VERDICT_OF_NUMBER = {n: verdict_of(code) for n, code in STATUS_OF_NUMBER.items()}
