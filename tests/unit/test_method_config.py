"""Who says that a method may be executed twice."""

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor_pb2 import MethodOptions

from lbclient.wire.method_config import is_idempotent

PACKAGE = "lbclient.test.idempotent"


def declare() -> None:
    """A service whose .proto says it of two of its three methods."""
    file = descriptor_pb2.FileDescriptorProto(
        name="lbclient/test/idempotent.proto", package=PACKAGE, syntax="proto3"
    )
    file.message_type.add(name="Nothing")
    service = file.service.add(name="Store")
    for name, level in (
        ("Read", MethodOptions.NO_SIDE_EFFECTS),
        ("Put", MethodOptions.IDEMPOTENT),
        ("Append", None),
    ):
        nothing = f".{PACKAGE}.Nothing"
        method = service.method.add(name=name, input_type=nothing, output_type=nothing)
        if level is not None:
            method.options.idempotency_level = level
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())


def test_a_proto_says_it_of_its_methods() -> None:
    declare()
    said = {
        name: is_idempotent(f"/{PACKAGE}.Store/{name}", ())
        for name in ("Read", "Put", "Append", "Missing")
    }
    assert said == {"Read": True, "Put": True, "Append": False, "Missing": False}


def test_the_config_says_it_of_methods_and_of_services() -> None:
    marked = ("/a.Store/Put", "/b.Store/*")
    assert is_idempotent("/a.Store/Put", marked)
    assert is_idempotent("/b.Store/Append", marked)
    assert not is_idempotent("/a.Store/Append", marked)
    assert not is_idempotent("/b.Storehouse/Append", marked)


def test_of_a_service_that_nobody_knows_nothing_is_said() -> None:
    assert not is_idempotent("/no.Such/Method", ())
    assert not is_idempotent("", ())
