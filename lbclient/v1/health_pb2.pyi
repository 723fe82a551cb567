from lbclient.v1 import load_pb2 as _load_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HealthRequest(_message.Message):
    __slots__ = ("report_interval", "fleet_cost")
    REPORT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    FLEET_COST_FIELD_NUMBER: _ClassVar[int]
    report_interval: float
    fleet_cost: float
    def __init__(self, report_interval: _Optional[float] = ..., fleet_cost: _Optional[float] = ...) -> None: ...

class HealthReport(_message.Message):
    __slots__ = ("state", "load", "udp_port", "report_floor", "clients", "udp_session", "cost_rise", "workers")
    STATE_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    UDP_PORT_FIELD_NUMBER: _ClassVar[int]
    REPORT_FLOOR_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    UDP_SESSION_FIELD_NUMBER: _ClassVar[int]
    COST_RISE_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    state: _load_pb2.TaskState
    load: _load_pb2.LoadReport
    udp_port: int
    report_floor: float
    clients: int
    udp_session: UdpSession
    cost_rise: float
    workers: Workers
    def __init__(self, state: _Optional[_Union[_load_pb2.TaskState, str]] = ..., load: _Optional[_Union[_load_pb2.LoadReport, _Mapping]] = ..., udp_port: _Optional[int] = ..., report_floor: _Optional[float] = ..., clients: _Optional[int] = ..., udp_session: _Optional[_Union[UdpSession, _Mapping]] = ..., cost_rise: _Optional[float] = ..., workers: _Optional[_Union[Workers, _Mapping]] = ...) -> None: ...

class Workers(_message.Message):
    __slots__ = ("group", "ports", "task_cpu", "own_utilization", "serving")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    TASK_CPU_FIELD_NUMBER: _ClassVar[int]
    OWN_UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    group: int
    ports: _containers.RepeatedCompositeFieldContainer[WorkerPorts]
    task_cpu: float
    own_utilization: float
    serving: int
    def __init__(self, group: _Optional[int] = ..., ports: _Optional[_Iterable[_Union[WorkerPorts, _Mapping]]] = ..., task_cpu: _Optional[float] = ..., own_utilization: _Optional[float] = ..., serving: _Optional[int] = ...) -> None: ...

class WorkerPorts(_message.Message):
    __slots__ = ("shared", "own")
    SHARED_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    shared: int
    own: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, shared: _Optional[int] = ..., own: _Optional[_Iterable[int]] = ...) -> None: ...

class UdpSession(_message.Message):
    __slots__ = ("port", "id", "secret")
    PORT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    port: int
    id: int
    secret: bytes
    def __init__(self, port: _Optional[int] = ..., id: _Optional[int] = ..., secret: _Optional[bytes] = ...) -> None: ...
