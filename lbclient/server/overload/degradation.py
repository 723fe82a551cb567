"""Tells a handler whether to return a cheaper answer."""

from lbclient.wire import propagation


def degraded() -> bool:
    """Whether the server is near overload, so the handler should return a cheaper
    answer.

    False if no request is being served.
    """
    request = propagation.current()
    return request is not None and request.is_strained
