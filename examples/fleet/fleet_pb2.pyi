from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class WorkRequest(_message.Message):
    __slots__ = ("cost",)
    COST_FIELD_NUMBER: _ClassVar[int]
    cost: float
    def __init__(self, cost: _Optional[float] = ...) -> None: ...

class WorkReply(_message.Message):
    __slots__ = ("backend",)
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    backend: str
    def __init__(self, backend: _Optional[str] = ...) -> None: ...

class UsageRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UsageReply(_message.Message):
    __slots__ = ("busy", "elapsed", "cores", "speed", "requests")
    BUSY_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    SPEED_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    busy: float
    elapsed: float
    cores: float
    speed: float
    requests: int
    def __init__(self, busy: _Optional[float] = ..., elapsed: _Optional[float] = ..., cores: _Optional[float] = ..., speed: _Optional[float] = ..., requests: _Optional[int] = ...) -> None: ...
