// As `load` of stock_retries.py, in Node: stock_retries.cjs '[TARGET, CONFIG, RATE, CALLS]'
const grpc = require("@grpc/grpc-js");

const [target, config, rate, calls] = JSON.parse(process.argv[2]);
const METHOD = "/benchmark.StockRetries/Call";
const same = (bytes) => bytes;
const client = new grpc.Client(target, grpc.credentials.createInsecure(), {
  "grpc.service_config": config,
  "grpc.enable_http_proxy": 0,
});
const halves = [{}, {}];
let begun = 0, ended = 0;

function send() {
  const half = halves[begun * 2 < calls ? 0 : 1];
  begun += 1;
  client.makeUnaryRequest(METHOD, same, same, Buffer.alloc(0), { deadline: Date.now() + 20_000 }, (error) => {
    const status = error ? grpc.status[error.code] : "OK";
    half[status] = (half[status] ?? 0) + 1;
    ended += 1;
    if (ended === calls) process.stdout.write(JSON.stringify(halves) + "\n", () => process.exit(0));
  });
}

client.waitForReady(Date.now() + 20_000, (error) => {
  if (error) throw error;
  setTimeout(() => {  // for the rest of the connections
    const beganAt = performance.now();
    const timer = setInterval(() => {
      while (begun < calls && begun <= ((performance.now() - beganAt) / 1e3) * rate) send();
      if (begun === calls) clearInterval(timer);
    }, 2);
  }, 500);
});
