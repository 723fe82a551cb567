from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ServingRequest(_message.Message):
    __slots__ = ("service",)
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    service: str
    def __init__(self, service: _Optional[str] = ...) -> None: ...

class ServingReply(_message.Message):
    __slots__ = ("status",)
    class ServingStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[ServingReply.ServingStatus]
        SERVING: _ClassVar[ServingReply.ServingStatus]
        NOT_SERVING: _ClassVar[ServingReply.ServingStatus]
        SERVICE_UNKNOWN: _ClassVar[ServingReply.ServingStatus]
    UNKNOWN: ServingReply.ServingStatus
    SERVING: ServingReply.ServingStatus
    NOT_SERVING: ServingReply.ServingStatus
    SERVICE_UNKNOWN: ServingReply.ServingStatus
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: ServingReply.ServingStatus
    def __init__(self, status: _Optional[_Union[ServingReply.ServingStatus, str]] = ...) -> None: ...

class LoadReportRequest(_message.Message):
    __slots__ = ("report_interval", "request_cost_names")
    REPORT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_COST_NAMES_FIELD_NUMBER: _ClassVar[int]
    report_interval: _duration_pb2.Duration
    request_cost_names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, report_interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., request_cost_names: _Optional[_Iterable[str]] = ...) -> None: ...
