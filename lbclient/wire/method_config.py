"""Idempotency and maximum attempts of a method, from its .proto and the config.

Some of it by its own .proto, the rest by the config, in which a `/package.Service/*`
stands for all methods that are not named.

rpc Search(Query) returns (Result) { option idempotency_level = NO_SIDE_EFFECTS; }
"""

from collections.abc import Collection, Mapping

from google.protobuf import descriptor_pool

from lbclient.core.retry import ATTEMPTS


def is_idempotent(path: str, marked: Collection[str]) -> bool:
    """Whether `path`, a `/package.Service/Method`, is; `/package.Service/*` marks all.

    What a .proto says is known once its generated module is imported, as it is where
    its stub is used.
    """
    service, _, method = path.rpartition("/")
    if path in marked or f"{service}/*" in marked:
        return True
    try:
        described = descriptor_pool.Default().FindServiceByName(service.lstrip("/"))
        options = described.methods_by_name[method].GetOptions()
    except KeyError:  # there is no such service, or it has no such method
        return False
    return options.idempotency_level != options.IDEMPOTENCY_UNKNOWN


def max_attempts(path: str, told: int | Mapping[str, int]) -> int:
    """
    >>> told = {"/a.B/*": 2, "/a.B/C": 1}
    >>> max_attempts("/a.B/C", told), max_attempts("/a.B/D", told)
    (1, 2)
    >>> max_attempts("/e.F/G", told), max_attempts("/e.F/G", 1)
    (3, 1)
    """
    if isinstance(told, int):
        return told
    service = path.rpartition("/")[0]
    return told.get(path) or told.get(f"{service}/*") or ATTEMPTS
