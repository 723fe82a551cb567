"""Prints what grpcio-observability counts of a sync client and server, as JSON."""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import grpc
import grpc_observability  # type: ignore[import-not-found,unused-ignore]  # not in `dev`
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

path: str = sys.argv[1]
workload: list[int] = json.loads(sys.argv[2])
_, service, method_name = path.split("/")
CODES = {code.value[0]: code for code in grpc.StatusCode}


def as_asked(request: bytes, context: Any) -> bytes:
    code = CODES[int(request)]
    if code is not grpc.StatusCode.OK:
        context.abort(code, "as asked for")
    return request


reader = InMemoryMetricReader()
plugin = grpc_observability.OpenTelemetryPlugin(meter_provider=MeterProvider([reader]))
plugin.register_global()
server = grpc.server(ThreadPoolExecutor(2))
handlers: Any = {method_name: grpc.unary_unary_rpc_method_handler(as_asked)}
server.add_registered_method_handlers(service, handlers)
generic = grpc.method_handlers_generic_handler(service, handlers)
server.add_generic_rpc_handlers((generic,))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
    method: Any = channel.unary_unary(path, _registered_method=True)  # type: ignore[call-arg,unused-ignore]
    for asked in workload:
        with suppress(grpc.RpcError):
            method(str(asked).encode())
server.stop(None).wait()


def read() -> dict[tuple[str, ...], Any]:
    data = reader.get_metrics_data()
    found: dict[tuple[str, ...], Any] = {}
    for scope in data.resource_metrics[0].scope_metrics if data else ():
        for metric in scope.metrics:
            for point in metric.data.data_points:
                seen: Any = point
                of = [seen.attributes.get(f"grpc.{it}") for it in ("method", "status")]
                key = (metric.name, *(str(one) for one in of if one))
                found[key] = seen
    return found


def counts() -> dict[tuple[str, ...], int]:
    points = read()
    return {key: getattr(p, "count", None) or p.value for key, p in points.items()}


def sizes() -> dict[tuple[str, ...], int]:
    """Bytes of messages."""
    return {key: p.sum for key, p in read().items() if key[0].endswith("message_size")}


# A thread of the plugin's hands them over every half second.
for _turn in range(100):
    found = counts()
    ended = [n for key, n in found.items() if key[0] == "grpc.server.call.duration"]
    sent = [n for key, n in found.items() if key[0] == "grpc.client.attempt.duration"]
    if sum(ended) >= len(workload) <= sum(sent):
        break
    time.sleep(0.1)
plugin.deregister_global()
of_messages = sizes()
told = [[list(k), many, of_messages.get(k)] for k, many in sorted(counts().items())]
sys.stdout.write(json.dumps(told))
