"""The benchmarks that `python -m benchmarks` runs: to add one, add a line here.

The benchmark tells its figures by `conclude(..., measured=[...])`, each of them a
`harness.measured.Measured`. The page, the record and the comparison follow from these.
"""

from dataclasses import dataclass

SECTIONS = {
    "Cost": "What a call costs, beside grpcio's own channels and servers.",
    "Growth": "How cost grows with the number of backends, endpoints and channels.",
    "Other people's benchmarks": "Scripts and tables that others have published.",
    "Balance and latency": "Fleets of real processes, beside what people use instead.",
    "Overload": "More demand than can be met, with real processes.",
    "At scale": "Thousands of clients and backends: without a network, or simulated.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One benchmark; a module of `benchmarks`, or of a package in it.

    `short` and `full` are its arguments for the two forms, None: it has no such form.
    It is ended if it takes longer than `short_most` or `full_most` seconds. Where a
    program of `needs` is missing it is left out.
    """

    section: str
    name: str
    module: str
    shows: str
    short: tuple[str, ...] | None = ()
    full: tuple[str, ...] | None = ()
    short_most: float = 140.0
    full_most: float = 1200.0
    needs: tuple[str, ...] = ()

    def arguments(self, *, is_full: bool) -> tuple[str, ...] | None:
        return self.full if is_full else self.short

    def command(self, *, is_full: bool) -> str:
        """What a reader types."""
        words = self.arguments(is_full=is_full) or ()
        return " ".join(("python -m benchmarks." + self.module, *map(_quoted, words)))


def _quoted(word: str) -> str:
    return f"'{word}'" if " " in word else word


COST, GROWTH, OTHERS, BALANCE, OVERLOAD, SCALE = SECTIONS
QUICK = ("--quick",)

BENCHMARKS = (
    Listed(
        section=COST, name="overhead", module="overhead", short=QUICK,
        shows="CPU of a call and calls a second, lbclient's over grpcio's.",
    ),
    Listed(
        section=COST, name="footprint", module="footprint", short=QUICK,
        shows="Memory of channels and connections; time to import and to start.",
    ),
    Listed(
        section=COST, name="exporting", module="exporting", short=None,
        shows="What an exporter of metrics adds to a call.",
    ),
    Listed(
        section=COST, name="refusals", module="refusals", short=None,
        shows="What it takes a server to refuse a request, by how it does.",
    ),
    Listed(
        section=COST, name="proxy", module="proxy", short=None,
        shows="What the batch proxy adds to a call, and the connections it saves.",
    ),
    Listed(
        section=GROWTH, name="growth", module="growth", short=QUICK,
        shows="A call with subsets of 1 to 100 and up to 100,000 endpoints; a scrape; "
        "a change of the subset; health streams; 1,000 idle channels.",
    ),
    Listed(
        section=GROWTH, name="picks", module="picks", short=None,
        shows="The pick alone, with 3 to 1,000 backends.",
    ),
    Listed(
        section=GROWTH, name="discovery", module="discovery",
        short=("own", "dns"),
        shows="CPU of the loop for a list of 10,000 endpoints, by source.",
    ),
    Listed(
        section=GROWTH, name="idle", module="idle", short=None,
        shows="500 inactive backends, which are asked by UDP.",
    ),
    Listed(
        section=OTHERS, name="grpc_scripts", module="grpc_scripts", short=QUICK,
        shows="The script of grpc/grpc#43092, and scenarios of gRPC's QPS worker.",
    ),
    Listed(
        section=OTHERS, name="grpc_interop", module="grpc_interop",
        shows="gRPC's interoperability cases, with lbclient on either side.",
    ),
    Listed(
        section=OTHERS, name="prequal", module="prequal", short=QUICK, full_most=3600.0,
        shows="Prequal's experiment (NSDI 2024) in the simulator. The paper does not "
        "tell how many of its ten processors a contended replica keeps. Weighted round "
        "robin depends on it at a load of 0.9: nine are just enough, as in the paper's "
        "load ramp; with eight a replica is overloaded, as in the paper's table.",
    ),
    Listed(
        section=OTHERS, name="book", module="book", short=QUICK,
        shows="Figures of the SRE book and of CACM 2023: claims that hold.",
    ),
    Listed(
        section=BALANCE, name="peers", module="peers", short=QUICK,
        shows="Eight servers and two clients for each way to balance: grpcio's "
        "policies, outlier detection, haproxy, nginx; what happens to a server: it "
        "slows down, gets a neighbour, restarts, is killed, fails all, falls silent.",
    ),
    Listed(
        section=BALANCE, name="scale_up", module="scale_up", short=QUICK,
        needs=("unshare", "ip"),
        shows="A fleet that is doubled behind DNS: seconds until new backends have "
        "their share.",
    ),
    Listed(
        section=BALANCE, name="real_and_simulated", module="real_and_simulated",
        short=None,
        shows="One scenario as processes and in the simulator.",
    ),
    Listed(
        section=BALANCE, name="faults", module="faults", full_most=5400.0,
        short=(*QUICK, "--only", "vanished", "rolling_restart"), full=(),
        shows="What faults cost the callers, beside grpc.aio's round_robin.",
    ),
    Listed(
        section=BALANCE, name="resize", module="resize", short=QUICK,
        shows="A backend job that is resized: connections and latency, by subset.",
    ),
    Listed(
        section=BALANCE, name="workers", module="workers", short=None,
        shows="Two workers on two idle cores beside one, and beside SO_REUSEPORT.",
    ),
    Listed(
        section=BALANCE, name="crowding", module="crowding", short=None,
        shows="How even connections are without task numbers.",
    ),
    Listed(
        section=BALANCE, name="hedging", module="hedging", short=None,
        shows="What hedging does to the tail, and what it costs.",
    ),
    Listed(
        section=BALANCE, name="late_binding", module="late_binding", short=None,
        shows="What it gives that busy backends decline first attempts.",
    ),
    Listed(
        section=BALANCE, name="antagonist", module="antagonist", short=None,
        shows="Who notices that others use a backend's CPU, and how soon.",
    ),
    Listed(
        section=BALANCE, name="stock_clients", module="stock_clients", short=None,
        shows="What stock clients make of lbclient's servers.",
    ),
    Listed(
        section=OVERLOAD, name="overload", module="overload", full_most=3600.0,
        short=("--handler", "10", "--times", "10", "--surroundings", "quiet",
               "--seconds", "5"),
        full=("--handler", "10", "waiting", "--times", "1", "2", "5", "10",
              "--surroundings", "quiet", "neighbour",
              "--clients", "frames", "stock", "ours", "--seconds", "5"),
        shows="A server in more demand than it can meet, beside a bare one.",
    ),
    Listed(
        section=OVERLOAD, name="retries", module="retries", short=QUICK,
        shows="Calls that arrive at servers that refuse them, for each one wanted.",
    ),
    Listed(
        section=OVERLOAD, name="throttling", module="throttling", short=None,
        shows="A client that wants ten times what its backend accepts.",
    ),
    Listed(
        section=OVERLOAD, name="sparse", module="sparse", short=None, full_most=900.0,
        shows="Many clients that send little each, to an overloaded fleet.",
    ),
    Listed(
        section=OVERLOAD, name="pool", module="pool", short=None,
        shows="A server whose handlers wait for a pool.",
    ),
    Listed(
        section=OVERLOAD, name="quotas", module="quotas", short=None,
        needs=("redis-server",),
        shows="Three customers, of whom one wants ten times its share.",
    ),
    Listed(
        section=OVERLOAD, name="batch", module="batch", short=None,
        shows="What a batch job takes from interactive clients.",
    ),
    Listed(
        section=OVERLOAD, name="stock_retries", module="stock_retries", short=None,
        shows="What stock clients' own retries cost lbclient's servers.",
    ),
    Listed(
        section=OVERLOAD, name="retries_elsewhere", module="retries_elsewhere",
        short=None,
        shows="Retries that avoid backends already tried, and that go anywhere.",
    ),
    Listed(
        section=SCALE, name="scale", module="scale", short=QUICK,
        shows="10,000 clients x 10,000 backends: connections and churn; 1,000 x 1,000 "
        "with calls.",
    ),
    Listed(
        section=SCALE, name="crowd", module="crowd", short=("--sizes", "1000"),
        shows="The longest turn of the loop when many backends come and go at once.",
    ),
    Listed(
        section=SCALE, name="keys", module="keys",
        short=("--quick", "--only", "balance"),
        shows="Hot keys, simulated: balance, and calls on first choices.",
    ),
    Listed(
        section=SCALE, name="hot_key", module="hot_key", short=None,
        shows="A key at three times the capacity of its backend, and the other keys.",
    ),
    Listed(
        section=SCALE, name="streams", module="streams", short=None,
        shows="Long streams on a fleet that grows: evenness, and how many move.",
    ),
    Listed(
        section=SCALE, name="engines", module="engines", short=("--quick",),
        shows="Cache-aware routing on modelled inference engines, beside other "
        "pickers.",
    ),
    Listed(
        section=SCALE, name="policies", module="policies", short=None, full_most=7200.0,
        shows="What the pickers promise, in every scenario.",
    ),
)  # fmt: skip
