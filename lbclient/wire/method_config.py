"""Whether a method is idempotent: its own .proto says so, or the config.

rpc Search(Query) returns (Result) { option idempotency_level = NO_SIDE_EFFECTS; }
"""

from collections.abc import Collection

from google.protobuf import descriptor_pool


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
