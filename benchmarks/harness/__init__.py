"""What benchmarks share: processes, servers, load, options and figures.

A benchmark is `python -m benchmarks.NAME`. Its servers and its load are functions of
its own module, each of which runs in a process of its own (`processes`).
"""
