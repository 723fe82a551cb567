"""What faults cost the callers: each fault here, and plain grpc.aio beside it.

`python -m benchmarks.faults` runs them all and prints one table. A fault is a module
with `async def run(seconds: float) -> list[Row]`; `tests/faults` runs the short forms.
"""
