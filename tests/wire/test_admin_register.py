"""channelz and reflection on a server of ours, asked as grpcurl and grpcdebug ask."""

from typing import Any

import grpc
import pytest
import search_pb2_grpc as pb_grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import lbclient
from lbclient import admin
from lbclient.core.refusal import Refusal
from tests import needs
from tests.hosts import Host, Hosted

channelz_pb2 = needs.module("grpc_channelz.v1.channelz_pb2")
reflection_pb2 = needs.module("grpc_reflection.v1alpha.reflection_pb2")

# v1 is what grpcurl asks for, and v1alpha what it asks for next.
VERSIONS = ("v1", "v1alpha")


class Search(pb_grpc.SearchServicer):
    pass


async def started(host: Host, **settings: Any) -> Hosted:
    server = lbclient.server(
        options=[("grpc.enable_channelz", 1)],
        config=lbclient.ServerConfig(**settings),
    )
    pb_grpc.add_SearchServicer_to_server(Search(), server)
    admin.register(server)
    return await host(server=server)


async def reflect(channel: Any, version: str = "v1", **request: Any) -> Any:
    ask = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )
    call = ask(iter([reflection_pb2.ServerReflectionRequest(**request)]), timeout=5)
    return await call.read()


@pytest.mark.parametrize("version", VERSIONS)
async def test_reflection_lists_and_describes_the_users_services(
    host: Host, version: str
) -> None:
    _, _, channel = await started(host)
    said = await reflect(channel, version, list_services="")
    listed = [service.name for service in said.list_services_response.service]
    names = set(listed)
    assert len(listed) == len(names)
    assert {"search.Search", "lbclient.v1.BackendHealth"} <= names
    assert {f"grpc.reflection.{one}.ServerReflection" for one in VERSIONS} <= names
    for name in sorted(names):
        said = await reflect(channel, version, file_containing_symbol=name)
        assert said.HasField("file_descriptor_response"), name
    said = await reflect(channel, version, file_containing_symbol="search.Search")
    (data, *_) = said.file_descriptor_response.file_descriptor_proto
    described = descriptor_pb2.FileDescriptorProto.FromString(data)
    assert [service.name for service in described.service] == ["Search"]


async def test_what_describes_v1_is_v1(host: Host) -> None:
    """A client can make its messages from it, and they are those that are served."""
    _, _, channel = await started(host)
    name = "grpc.reflection.v1.ServerReflection"
    said = await reflect(channel, file_containing_symbol=name)
    (data,) = said.file_descriptor_response.file_descriptor_proto
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(data)
    described = pool.FindServiceByName(name).methods_by_name["ServerReflectionInfo"]
    request, response = (
        message_factory.GetMessageClass(one)
        for one in (described.input_type, described.output_type)
    )
    assert described.input_type.full_name.startswith("grpc.reflection.v1.")
    path = f"/{name}/ServerReflectionInfo"
    ask = channel.stream_stream(path, request.SerializeToString, response.FromString)
    asked: Any = request(file_by_filename="grpc/reflection/v1/reflection.proto")
    again: Any = await ask(iter([asked]), timeout=5).read()
    assert again.file_descriptor_response.file_descriptor_proto == [data]
    assert b"v1alpha" not in data
    said = await reflect(channel, file_containing_symbol="no.Such")
    assert said.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


async def test_channelz_tells_of_the_server(host: Host) -> None:
    _, _, channel = await started(host)
    ask = channel.unary_unary(
        "/grpc.channelz.v1.Channelz/GetServers",
        channelz_pb2.GetServersRequest.SerializeToString,
        channelz_pb2.GetServersResponse.FromString,
    )
    said: Any = await ask(channelz_pb2.GetServersRequest(), timeout=5)
    assert len(said.server) >= 1


async def test_neither_is_refused_or_counted_when_all_else_is(host: Host) -> None:
    server, _, channel = await started(host, signals={"all of it": lambda: 1000.0})
    search: Any = channel.unary_unary("/search.Search/Search")
    with pytest.raises(grpc.aio.AioRpcError, match=r"overloaded: all of it"):
        await search(b"", timeout=5)
    for version in VERSIONS * 3:
        said = await reflect(channel, version, list_services="")
        assert said.HasField("list_services_response")
        ask: Any = channel.unary_unary("/grpc.channelz.v1.Channelz/GetTopChannels")
        await ask(b"", timeout=5)
    seen = server.statistics()
    assert sum(seen.refused[Refusal.OVERLOADED.value].values()) == 1
    assert sum(seen.requests.values()) == 1


def test_what_is_no_server_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^no server of grpc\.aio or lbclient: 5$"):
        admin.register(5)  # type: ignore[arg-type]
