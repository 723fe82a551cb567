"""The public name of quota stores that programs make for `ServerConfig.quota_store`.

One that a URL names is found by `lbclient.server.quotas.quota_enforcer`.
"""

from lbclient.server.quotas.memory_store import MemoryStore

__all__ = ["MemoryStore"]
