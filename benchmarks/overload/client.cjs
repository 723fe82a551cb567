// As load.py, in Node: client.cjs '["node", PORT, PHASES, BEGIN, END, CRITICAL, SEED]'
// Says a line when it begins, and one for each call that has ended.
const grpc = require("@grpc/grpc-js");

const [, port, phases, , , critical] = JSON.parse(process.argv[2]);
const METHOD = "/benchmark.Overload/Work";
const DEADLINE = 1000;  // ms
const CHANNELS = 4;
const same = (bytes) => bytes;
const now = () => performance.now();
const clients = Array.from({ length: CHANNELS }, () => new grpc.Client(
  `127.0.0.1:${port}`, grpc.credentials.createInsecure(),
  { "grpc.enable_http_proxy": 0, "grpc.enable_retries": 0, "grpc.use_local_subchannel_pool": 1 },
));
let due = 0, phase = 0, end = 0, open = 0, turn = 0, lines = [];

// Poisson arrivals: the next of them, in seconds since the beginning.
function next() {
  for (; phase <= phases.length; phase += 1) {
    if (phase > 0) {
      due += -Math.log(1 - Math.random()) / phases[phase - 1][0];
      if (due < end) return;
    }
    due = end;
    if (phase < phases.length) end += phases[phase][1];
  }
  due = Infinity;
}

function send(at, beganAt) {
  const drawn = Math.random() / critical; // as `choose` in load.py
  const criticality = drawn < 0.1 ? "CRITICAL_PLUS" : drawn < 1 ? "CRITICAL" : "SHEDDABLE";
  const metadata = new grpc.Metadata();
  metadata.set("lbclient-criticality", criticality);
  const sentAt = now();
  const client = clients[(turn += 1) % CHANNELS];
  open += 1;
  client.makeUnaryRequest(METHOD, same, same, Buffer.alloc(0), metadata, { deadline: Date.now() + DEADLINE }, (error) => {
    const code = error ? grpc.status[error.code] : "OK";
    const refusal = error?.metadata?.get("lbclient-refusal")[0] ?? "";
    lines.push(JSON.stringify([at, criticality, code, refusal, (now() - sentAt) / 1e3, (sentAt - beganAt) / 1e3 - at]));
    open -= 1;
  });
}

function ready(client) {
  return new Promise((resolve, reject) =>
    client.waitForReady(Date.now() + 20_000, (error) => (error ? reject(error) : resolve())));
}

Promise.all(clients.map(ready)).then(() => {
  const beganAt = now();
  process.stdout.write('"begun"\n');
  next();
  const timer = setInterval(() => {
    for (; due < (now() - beganAt) / 1e3; next()) send(due, beganAt);
    if (lines.length) process.stdout.write(lines.join("\n") + "\n");
    lines = [];
    if (due === Infinity && open === 0) {
      clearInterval(timer);
      process.stdout.write("", () => process.exit(0));
    }
  }, 2);
});
