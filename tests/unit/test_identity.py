"""Which task this client is: who is asked first, and who is not believed."""

from collections.abc import Mapping

import pytest

from lbclient.config import ChannelConfig
from lbclient.config.identity import find_identity, find_zone
from lbclient.core.errors import ConfigError
from lbclient.core.model import Identity

POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}

# Each is the last that is still asked when all before it are silent.
IN_ORDER = {
    "LBCLIENT_TASK_INDEX": "1",
    "JOB_COMPLETION_INDEX": "2",
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",  # so the hostname, web-3, counts
    "NOMAD_ALLOC_INDEX": "4",
}


def found(environ: Mapping[str, str], hostname: str = "web-3") -> Identity:
    return find_identity(None, environ, lambda: hostname)


@pytest.mark.parametrize("silent", range(len(IN_ORDER) + 1))
def test_the_first_source_that_knows_decides(silent: int) -> None:
    environ = dict(list(IN_ORDER.items())[silent:])
    said = [
        "LBCLIENT_TASK_INDEX=1",
        "JOB_COMPLETION_INDEX=2",
        "hostname 'web-3'",
        "NOMAD_ALLOC_INDEX=4",
    ]
    if silent == len(IN_ORDER):
        assert found(environ) == Identity(None)
    else:
        assert found(environ) == Identity(silent + 1, said[silent])


def test_the_configuration_ends_the_search() -> None:
    identity = find_identity(9, IN_ORDER, lambda: "web-3")
    assert identity == Identity(9, "task_index=9")


def test_a_config_from_the_environment_says_that_it_was_a_variable() -> None:
    config = ChannelConfig.from_environment({"LBCLIENT_TASK_INDEX": "1"})
    identity = find_identity(config.task_index, IN_ORDER, lambda: "web-3")
    assert identity == Identity(1, "LBCLIENT_TASK_INDEX=1")


@pytest.mark.parametrize(
    ("hostname", "index"),
    [
        ("web-0", 0),
        ("web-7", 7),
        ("my-web-12.web.prod.svc.cluster.local", 12),
        ("shard-1-0", 0),
        ("web-9999", 9999),
    ],
)
def test_a_statefulsets_hostname_ends_in_its_ordinal(hostname: str, index: int) -> None:
    assert found(POD, hostname) == Identity(index, f"hostname {hostname!r}")


@pytest.mark.parametrize(
    "hostname",
    [
        "web-6d4cf56db6-24568",  # a Deployment's pod, by chance all digits
        "web-6d4cf56db6-x7f2q",
        "web-07",
        "web-",
        "-7",
        "web-7x",
        "web7",
        "7",
        "",
        "localhost",
        "ip-10-0-0-3",  # a node, whose name its pods bear with hostNetwork
        "ip-10-0-0-3.ec2.internal",
        "10-0-0-3",
    ],
)
def test_other_hostnames_have_no_ordinal(hostname: str) -> None:
    assert found(POD, hostname) == Identity(
        None, f"hostname {hostname!r} has no ordinal"
    )


def test_a_hostname_outside_of_a_pod_is_a_machines() -> None:
    assert found({}, "web-7") == Identity(None)


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "1.5", "+1", " 1", "1_0", "٣", "1" * 99]
)
def test_a_foreign_variable_that_is_no_number_is_ignored_with_the_reason(
    text: str,
) -> None:
    reason = f"JOB_COMPLETION_INDEX={text[:40]!r} is no whole number"
    job = {"JOB_COMPLETION_INDEX": text}
    assert found(job) == Identity(None, reason)
    nomad = found({**job, "NOMAD_ALLOC_INDEX": "4"})
    assert nomad == Identity(4, f"NOMAD_ALLOC_INDEX=4; {reason}")


@pytest.mark.parametrize("text", ["x", "-1", "1.5"])
def test_our_own_variable_must_be_a_number(text: str) -> None:
    environ = {**IN_ORDER, "LBCLIENT_TASK_INDEX": text}
    with pytest.raises(ConfigError, match="want a whole number") as caught:
        found(environ)
    assert (caught.value.field, caught.value.value) == ("LBCLIENT_TASK_INDEX", text)
    with pytest.raises(ConfigError) as read:
        ChannelConfig.from_environment(environ)
    assert str(read.value) == str(caught.value)


def test_an_empty_variable_is_none_at_all() -> None:
    """What the downward API gives for a label that is not there."""
    environ = {"LBCLIENT_TASK_INDEX": "", "NOMAD_ALLOC_INDEX": "4"}
    assert found(environ).index == 4
    assert ChannelConfig.from_environment(environ).task_index is None


def test_a_zone_is_that_of_the_config_else_of_the_environment() -> None:
    assert find_zone("a", {"LBCLIENT_ZONE": "b"}) == "a"
    assert find_zone("", {"LBCLIENT_ZONE": "b"}) == "b"
    with pytest.raises(ConfigError, match="zone for locality=True: set LBCLIENT_ZONE"):
        find_zone("", {"LBCLIENT_ZONE": ""})
