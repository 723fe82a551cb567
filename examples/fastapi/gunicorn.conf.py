"""gunicorn shop.app:app"""

import os
import shutil
import tempfile
from typing import Any

from shop.settings import Settings

settings = Settings()
ports = (settings.port, settings.operations_port)
bind = [f"{settings.host}:{port}" for port in ports]
workers = 3
worker_class = "uvicorn_worker.UvicornWorker"
# Import once, then fork, and only then, in the lifespan, make a channel: gRPC's threads
# do not survive a fork. SIGHUP reloads no code with it: start a new version anew.
preload_app = True
graceful_timeout = 20  # seconds for requests in flight: more than the longest deadline
control_socket_disable = True  # gunicorn 25's; nothing here uses it

# Where workers write their metrics, a directory of this start. prometheus_client reads
# the variable when it is imported. A reload reads this file again, and finds it set.
if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = tempfile.mkdtemp(prefix="shop-metrics-")


def child_exit(_: Any, worker: Any) -> None:
    """A worker's gauges end with it; its counts stay."""
    from prometheus_client import multiprocess

    multiprocess.mark_process_dead(worker.pid)


def on_exit(_: Any) -> None:
    shutil.rmtree(os.environ["PROMETHEUS_MULTIPROC_DIR"], ignore_errors=True)
