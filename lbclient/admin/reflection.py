"""gRPC's reflection under both of its names: v1, which clients ask for first, v1alpha.

grpcio-reflection has v1alpha alone. Messages and method are the same in both, field by
field, so one servicer answers for both. What describes v1 is made from v1alpha's
description, in a pool of its own: the default pool takes only one file of a name, and
another library may bring it.
"""

from collections.abc import Iterable
from typing import Any

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import Default, DescriptorPool
from grpc_reflection.v1alpha import reflection, reflection_pb2

V1ALPHA = reflection.SERVICE_NAME
V1 = V1ALPHA.replace("v1alpha", "v1")
METHOD = "ServerReflectionInfo"


class ReflectionPool:
    """The default pool, and what describes v1 unless that is there, too."""

    def __init__(self) -> None:
        self._default: Any = Default()
        self._more: Any = DescriptorPool()
        self._more.AddSerializedFile(describe_v1().SerializeToString())

    def FindFileByName(self, name: str) -> Any:
        return self._find("FindFileByName", name)

    def FindFileContainingSymbol(self, name: str) -> Any:
        return self._find("FindFileContainingSymbol", name)

    def _find(self, method: str, name: str) -> Any:
        """Raises KeyError."""
        try:
            return getattr(self._default, method)(name)
        except KeyError:
            return getattr(self._more, method)(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._default, name)

    def __repr__(self) -> str:
        return f"<the default pool, and {V1}>"


def describe_v1() -> descriptor_pb2.FileDescriptorProto:
    """v1's .proto: v1alpha's, with another name, package and types of that package."""
    made = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(made)
    made.ClearField("options")  # packages of other languages
    made.name = "grpc/reflection/v1/reflection.proto"
    made.package = V1.rpartition(".")[0]
    for message in made.message_type:
        for field in filter(lambda one: one.type_name, message.field):
            field.type_name = field.type_name.replace(".v1alpha.", ".v1.")
    for service in made.service:
        for method in service.method:
            method.input_type = method.input_type.replace(".v1alpha.", ".v1.")
            method.output_type = method.output_type.replace(".v1alpha.", ".v1.")
    return made


def add_reflection(server: grpc.aio.Server, services: Iterable[str]) -> None:
    """Both, which list these services and themselves."""
    names = [*services, V1, V1ALPHA]
    pool: Any = ReflectionPool()
    reflection.enable_server_reflection(names, server, pool)
    servicer = reflection.aio.ReflectionServicer(names, pool=pool)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        reflection_pb2.ServerReflectionRequest.FromString,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    generic = grpc.method_handlers_generic_handler(V1, {METHOD: handler})
    server.add_generic_rpc_handlers((generic,))
