"""Runs the essential tests on each version of grpcio, protobuf and Python we support.

    make matrix                     # all combinations, some ten minutes each
    make matrix ARGS="floor newest" # these two
    make matrix ARGS=--help

Each combination has an environment of its own in .tools/matrix. The whole suite runs on
the newest of all, and .ci/run runs some of `floor` beside it.
"""

import argparse
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".tools" / "matrix"

# Tests of tests/wire that are left out. All others are run, a new one, too.
LEFT_OUT = (
    # What commands, pages and examples show. They use the calls that the others test.
    *("admin", "admin_browser", "command_colours", "dashboards"),
    *("demo", "docs", "doctor_command", "fastapi_example", "inference_example"),
    *("inspect_command", "metrics", "probe_command"),
    *("resolve_command", "testing_docs", "worker_commands"),
    # Sources of endpoints, which ask nothing of grpcio.
    *("dns_resolver", "file_resolver", "kubernetes_resolver", "resolver_errors"),
    *("resolver_lists", "silent_names", "srv_resolver", "system_resolver"),
    # What many processes do, in minutes, and what is counted on the newest versions.
    *("connection_storm", "contention", "crowding", "ejection", "large_fleet"),
    *("overhead_counts", "partition", "proxy", "redis_quotas", "resize", "rollout"),
    *("slowdowns", "soak", "subset_fleet", "subset_growth"),
)
TESTS = (
    "tests/conformance",
    *(
        f"tests/wire/{path.name}"
        for path in sorted((ROOT / "tests" / "wire").glob("test_*.py"))
        if path.stem.removeprefix("test_") not in LEFT_OUT
    ),
)
# Those that .ci/run has time for: what depends most on grpcio's insides, and on how its
# calls and connections end.
IN_CI = (
    "busy_or_dead", "channel", "given_up", "goaway", "inactive", "intake",
    "interceptors", "interop", "leaks", "lifecycle", "mended", "private_names",
    "raised", "raw_metadata", "refused_streams", "resending", "server_health",
    "server_leaving", "server_load", "server_overload", "slots", "streams",
    "waiting", "wakeups",
)  # fmt: skip
EXTRAS = "dns,k8s,otel,psutil,redis,yaml"  # not admin, which wants protobuf 6
# Of what pyproject.toml lists for development, and tests here do not need.
UNUSED = (
    "lbclient",
    "ruff",
    "mypy",
    "types-",
    "build",
    "hatchling",
    "kubernetes-validate",
    # For examples/fastapi; the exporter wants a newer protobuf.
    "fastapi",
    "httpx",
    "uvicorn-worker",
    "opentelemetry-exporter-otlp",
    "opentelemetry-instrumentation-fastapi",
    "pyright",
)


@dataclass(frozen=True)
class Combination:
    """An empty version is the newest; of Python it is the one that runs this."""

    name: str
    grpcio: str = ""
    protobuf: str = ""
    python: str = ""

    @property
    def program(self) -> str:
        return str(HOME / self.name / "bin" / "python")

    def requirements(self) -> list[str]:
        pinned = {"grpcio": self.grpcio, "protobuf": self.protobuf}
        with (ROOT / "pyproject.toml").open("rb") as file:
            extras = tomllib.load(file)["project"]["optional-dependencies"]
        return [
            *("--editable", f"{ROOT}[{EXTRAS}]"),
            *(
                f"{name}=={wanted}" if wanted else name
                for name, wanted in pinned.items()
            ),
            *(line for line in extras["dev"] if not line.startswith(UNUSED)),
        ]


# The lower bounds of pyproject.toml, and versions of grpcio between these and the
# newest; tests/house compares them.
SOME_GRPCIO = ("1.70", "1.74", "1.78", "1.80", "1.82", "1.84")
COMBINATIONS = (
    Combination("floor", grpcio="1.66.0", protobuf="4.25.1", python="3.11"),
    *(Combination(f"grpcio-{it}", grpcio=f"{it}.*") for it in SOME_GRPCIO),
    Combination("protobuf-4.25", protobuf="4.25.1"),
    Combination("newest"),
    *(Combination(f"python-{it}", python=it) for it in ("3.12", "3.13", "3.14")),
)


def interpreter(version: str) -> str | None:
    """One that runs: pyenv's shims may be there for versions that are not."""
    if version in ("", "{}.{}".format(*sys.version_info)):
        return sys.executable
    programs = [*Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    if found := shutil.which(f"python{version}"):
        programs.append(Path(found))
    for program in programs:
        if subprocess.run([program, "-V"], capture_output=True).returncode == 0:
            return str(program)
    return None


def set_up(one: Combination) -> bool:
    """Makes the environment, or brings it up to date; False: no such Python is here."""
    found = interpreter(one.python)
    if found is None:
        print(f"{one.name}: no python{one.python} here", flush=True)
        return False
    if not Path(one.program).exists():
        subprocess.run([found, "-m", "venv", "--clear", HOME / one.name], check=True)
    install = [one.program, "-m", "pip", "install", "--quiet", "--upgrade"]
    subprocess.run([*install, *one.requirements()], check=True)
    print(f"{one.name}: {versions(one)}", flush=True)
    return True


def versions(one: Combination) -> str:
    words = "import sys, grpc, google.protobuf as p; print(sys.version.split()[0], "
    command = [one.program, "-c", words + "grpc.__version__, p.__version__)"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return "Python {}, grpcio {}, protobuf {}".format(*said.split())


def is_good(one: Combination) -> bool:
    """Whether the essential tests pass; pytest says what does not."""
    cache = f"cache_dir={HOME / one.name / 'pytest_cache'}"
    command = [one.program, "-m", "pytest", "-q", "-o", cache, *TESTS]
    return subprocess.run(command, cwd=ROOT).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    by_name = {one.name: one for one in COMBINATIONS}
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(by_name))
    parser.add_argument("--set-up", action="store_true", help="run no test")
    parser.add_argument("--in-ci", action="store_true", help="name what .ci/run runs")
    given = parser.parse_args()
    if unknown := sorted(set(given.names) - set(by_name)):
        parser.error(f"no combination {unknown[0]}, but {', '.join(by_name)}")
    if given.in_ci:
        print(*(f"tests/wire/test_{name}.py" for name in IN_CI), sep="\n")
        return 0
    chosen = [by_name[name] for name in given.names] or list(COMBINATIONS)
    # A Python that is not here is no failure: which ones are is the machine's.
    ready = [one for one in chosen if set_up(one)]
    if given.set_up:
        return int(ready != chosen)
    bad = [one.name for one in ready if not is_good(one)]
    print(f"{len(ready) - len(bad)} of {len(ready)} combinations are good", *bad)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
