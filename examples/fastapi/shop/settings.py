"""What the environment says."""

import os
from dataclasses import dataclass, field


def _read(name: str, default: str) -> str:
    return field(default_factory=lambda: os.environ.get(name, default))


@dataclass(frozen=True)
class Settings:
    """The defaults are those of the README: one machine, three backends."""

    # Where the backends are; dns:///catalog:50051 in Kubernetes.
    target: str = _read(
        "CATALOG_TARGET", "ipv4:127.0.0.1:50051,127.0.0.1:50052,127.0.0.1:50053"
    )
    # Shared by the web application and the backends.
    catalog_token: str = _read("CATALOG_TOKEN", "")
    # A JSON file of bearer tokens, each with its user.
    users: str = _read("SHOP_USERS", "users.json")
    # Where the web application listens: for users, and for operators, who have metrics,
    # probes and the status page there.
    host: str = _read("SHOP_HOST", "127.0.0.1")
    port: str = _read("SHOP_PORT", "8000")
    operations_port: str = _read("SHOP_OPERATIONS_PORT", "9464")
