"""Images made of what is installed on this Debian, where no registry can be reached.

One root with Python, Prometheus and Redis, of the files of their packages: nothing is
downloaded, and it takes seconds.
"""

import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

from tests import needs

PACKAGES = [
    "python3-venv",
    "redis-server",
    "base-files",
    "coreutils",
    "dash",
    "libc-bin",
]
ALSO = (
    "/usr/bin/prometheus",
    "/etc/nsswitch.conf",
    # Those that this machine trusts: a mirror of PyPI may be its own.
    "/etc/ssl/certs/ca-certificates.crt",
)
LISTS = Path("/var/lib/dpkg/info")
PYTHON = "/usr/bin/python3"
UNREAD = ("/usr/share/doc", "/usr/share/man", "/usr/share/locale", "/usr/share/info")
IMAGE, PROMETHEUS = "lbclient-test/base", "lbclient-test/prometheus"
REQUIRED = "import ensurepip, sys; sys.exit(sys.version_info < (3, 11))"
REACHES = "from urllib.request import urlopen; urlopen('https://pypi.org/simple/pip/')"
PATIENCE = 60.0  # seconds, for each step


def check() -> None:
    """Ends the test where this machine lacks what it takes to make them."""
    for command in ("apt-cache", "redis-server", "prometheus"):
        needs.program(command)
    if not Path(PYTHON).exists() or subprocess.run([PYTHON, "-c", REQUIRED]).returncode:
        needs.skip("no python3-venv of Debian's, 3.11 or newer")


def made() -> dict[str, str]:
    """By the variables of docker-compose.yml.

    Raises SubprocessError where a step fails, as it does without a way to PyPI.
    """
    command = ["docker", "import", "--change", f"ENV PIP_CERT={ALSO[-1]}", "-", IMAGE]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as importing:
        assert importing.stdin is not None
        with tarfile.open(fileobj=importing.stdin, mode="w|") as archive:
            for path in files():
                archive.add(path, recursive=False)
        importing.stdin.close()
        if importing.wait(PATIENCE):
            raise subprocess.CalledProcessError(importing.returncode, command)
    recipe = f'FROM {IMAGE}\nENTRYPOINT ["/usr/bin/prometheus"]\n'
    run("docker", "build", "--tag", PROMETHEUS, "-", text=recipe)
    run("docker", "run", "--rm", IMAGE, "python3", "-c", REACHES)
    return {"PYTHON_IMAGE": IMAGE, "PROMETHEUS_IMAGE": PROMETHEUS}


def files() -> list[Path]:
    """Of the packages and all they depend on, without what is only read by people."""
    depends = run(
        *("apt-cache", "depends", "--recurse", "--installed", "--important"), *PACKAGES
    )
    packages = {line for line in depends.splitlines() if line[0].isalnum()}
    lists = [
        file
        for package in sorted(packages)
        for form in (f"{package}.list", f"{package}:*.list")
        for file in LISTS.glob(form)
    ]
    listed = [name for file in lists for name in file.read_text().splitlines()]
    links = [path for path in Path("/").iterdir() if path.is_symlink()]
    found = dict.fromkeys(links)  # /bin and the like, which no package has
    for name in [*listed, *ALSO]:
        if name.startswith("/") and name != "/." and not name.startswith(UNREAD):
            for path in with_compiled(Path(name)):
                found[path.parent.resolve() / path.name] = None
    return [path for path in found if path.is_symlink() or path.exists()]


def with_compiled(path: Path) -> Iterator[Path]:
    """Modules are compiled when they are installed; no task could do so later."""
    yield path
    if path.suffix == ".py":
        yield from path.parent.glob(f"__pycache__/{path.stem}.cpython-*.pyc")


def run(*command: str, text: str | None = None) -> str:
    return subprocess.run(
        command,
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
        text=True,
        timeout=PATIENCE,
    ).stdout
