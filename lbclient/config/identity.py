"""Finds this client's task number: from settings, Kubernetes, Nomad or the host name.

Two clients with one number have one subset, and a number that changes at a restart
moves every connection. So only numbers that a scheduler keeps are believed, and a
hostname only inside a pod, where a StatefulSet may have chosen it: elsewhere `web-3`
is a machine, on which any number of clients may run.

Kubernetes: "StatefulSets", stable network ID; "Jobs", completion mode; "Nomad":
runtime environment variables.
"""

import re
from collections.abc import Callable, Mapping
from socket import gethostname

from lbclient.config.channel import ChannelConfig
from lbclient.config.sources import ENVIRONMENT
from lbclient.core.errors import ConfigError
from lbclient.core.model import Identity

OWN = "LBCLIENT_TASK_INDEX"
ZONE = "LBCLIENT_ZONE"
POD = "KUBERNETES_SERVICE_HOST"  # what every container in a pod is given

WHOLE = re.compile("[0-9]{1,10}")  # Kubernetes and Nomad count in 32 bits

# A Deployment's pods end in five characters, which may all be digits: an ordinal has
# fewer. And a pod on its node's network goes by the node's name, ip-10-0-0-3. A label
# has at most 63 characters (RFC 1035); of a longer one this would take quadratic time.
ORDINAL = re.compile("(?!.{64}|.*[0-9]+-[0-9]+-[0-9]+-[0-9]+$).+-(0|[1-9][0-9]{0,3})")


def find_identity(
    task_index: int | None,
    environ: Mapping[str, str] = ENVIRONMENT,
    hostname: Callable[[], str] = gethostname,
) -> Identity:
    """The client's task number: `task_index` of its config, else what is around it.

    Looks at LBCLIENT_TASK_INDEX, JOB_COMPLETION_INDEX, the ordinal of a StatefulSet's
    hostname and NOMAD_ALLOC_INDEX, in this order. Raises ConfigError if the first is
    no number; the others are not ours, so they are only said to be ignored.
    """
    if task_index is None and environ.get(OWN):
        task_index = ChannelConfig.from_environment({OWN: environ[OWN]}).task_index
    if task_index is not None:
        # A config from the environment has read the variable before us.
        text = environ.get(OWN, "")
        is_ours = WHOLE.fullmatch(text) and int(text) == task_index
        source = OWN if is_ours else "task_index"
        return Identity(task_index, f"{source}={task_index}")
    told = (
        _by_variable("JOB_COMPLETION_INDEX", environ),
        _by_hostname(hostname()) if POD in environ else None,
        _by_variable("NOMAD_ALLOC_INDEX", environ),
    )
    ignored: list[str] = []
    for identity in filter(None, told):
        if identity.index is not None:
            words = "; ".join([identity.source, *ignored])
            return Identity(identity.index, words)
        ignored.append(identity.source)
    return Identity(None, "; ".join(ignored))


def find_zone(zone: str, environ: Mapping[str, str] = ENVIRONMENT) -> str:
    """The zone of its config, else LBCLIENT_ZONE. Raises ConfigError for neither."""
    zone = zone or environ.get(ZONE, "")
    if not zone:
        want = f"this client's zone for locality=True: set {ZONE}"
        raise ConfigError("zone", zone, want)
    return zone


def home_zone(config: ChannelConfig) -> str:
    """The zone that a channel's calls should stay in; empty: any.

    Raises ConfigError if they should stay, and nothing says where.
    """
    return find_zone(config.zone) if config.locality else ""


def _by_variable(name: str, environ: Mapping[str, str]) -> Identity | None:
    text = environ.get(name)
    if text is None:
        return None
    if not WHOLE.fullmatch(text):
        return Identity(None, f"{name}={text[:40]!r} is no whole number")
    return Identity(int(text), f"{name}={int(text)}")


def _by_hostname(hostname: str) -> Identity:
    found = ORDINAL.fullmatch(hostname.partition(".")[0])
    if found is None:
        return Identity(None, f"hostname {hostname!r} has no ordinal")
    return Identity(int(found[1]), f"hostname {hostname!r}")
