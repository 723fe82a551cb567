// As stranger.py, in Node: client.js POLICY TARGET RATE
import grpc from "@grpc/grpc-js";

const [policy, target, rate] = process.argv.slice(2);
const METHOD = "/lbclient.faults.Echo/Echo";
const same = (bytes) => bytes;
const config = JSON.stringify({ loadBalancingConfig: [{ [policy]: {} }] });
const client = new grpc.Client(target, grpc.credentials.createInsecure(), {
  "grpc.service_config": config,
  "grpc.enable_http_proxy": 0,
});
const ended = {};
let begun = 0, open = 0, isOver = false;
const beganAt = Date.now();

function send() {
  begun += 1;
  open += 1;
  const deadline = Date.now() + 20_000;
  client.makeUnaryRequest(METHOD, same, same, Buffer.from("echo"), { deadline }, (error) => {
    const status = error ? `${grpc.status[error.code]}: ${error.details}` : "OK";
    ended[status] = (ended[status] ?? 0) + 1;
    open -= 1;
    finish();
  });
}

function finish() {
  if (isOver && open === 0) {
    process.stdout.write(JSON.stringify(ended) + "\n", () => process.exit(0));
  }
}

const timer = setInterval(() => {
  while (begun < ((Date.now() - beganAt) / 1000) * rate) send();
}, 1000 / rate);
process.stdin.resume();
process.stdin.on("end", () => {
  isOver = true;
  clearInterval(timer);
  finish();
});
