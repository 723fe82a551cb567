"""Several processes that serve one address: a task's workers, and who starts them.

`supervisor` starts and replaces processes, `process` is one of them as it sees it, and
`worker` is what runs in it. They tell each other `messages` through a `pipe`. What a
worker knows of its task is in `membership`, which the server of the process asks.
"""
