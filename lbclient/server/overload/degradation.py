"""Tells a handler whether to return a cheaper answer."""

from lbclient.wire import propagation


def degraded() -> bool:
    """Tells whether the server is near overload, so that a cheaper answer should do.

    False if no request is being served.
    """
    request = propagation.current()
    return request is not None and request.is_strained
