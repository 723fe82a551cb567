// Asks once a second and writes what is new into the page. What comes from elsewhere, names
// above all, is only ever set as text.
"use strict";

const VERSION = 1;
const POLL = 1000; // ms
const TIMEOUT = 5000;
const SIBLINGS = 5; // polls; the first makes the process look, the second shows what it found
const NEWS = 3; // states that are announced at a time
const SPAN = 5; // polls that a rate is the mean of

const STATES = {
  ready: ["●", "well"],
  serving: ["●", "well"],
  inactive: ["○", ""],
  connecting: ["◌", "warn"],
  starting: ["◔", "warn"],
  idle: ["○", ""],
  "lame duck": ["▲", "warn"],
  refusing: ["✕", "ill"],
  transient_failure: ["✕", "ill"],
};

const find = (id) => document.getElementById(id);

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// --- numbers as people read them -----------------------------------------------------------

const NONE = "–";
const count = (value) => (value === null || value === undefined ? NONE : Math.round(value).toLocaleString("en"));
const fixed = (value, digits = 2) => (value === null || value === undefined ? NONE : value.toFixed(digits));
const rate = (value) => (value === null || value === undefined ? NONE : value >= 100 ? count(value) : fixed(value, 1));
const SLOWED = 1.5; // rise of a request's cost, as in lbclient.core.relative_costs
const costed = ({ rise, is_slowed }) => (rise === null ? "not compared with the fleet's" : `${fixed(rise, 1)} times the usual one, compared with the fleet${is_slowed ? ": slowed" : ""}`);
const percent = (value) => (value === null || value === undefined ? NONE : `${(100 * value).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`);

function milliseconds(value) {
  if (value === null || value === undefined) return NONE;
  const ms = 1000 * value;
  return `${ms >= 100 ? count(ms) : ms >= 10 ? fixed(ms, 0) : fixed(ms, 1)} ms`;
}

function age(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} days`;
}

const sum = (counts) => Object.values(counts).reduce((total, one) => total + one, 0);

// --- pieces ------------------------------------------------------------------------------------

class Facts {
  constructor() {
    this.element = make("dl", { class: "facts" });
    this.places = new Map();
  }

  set(name, text, { kind = "", wide = false } = {}) {
    let place = this.places.get(name);
    if (!place) {
      place = make("dd");
      this.places.set(name, place);
      this.element.append(make("div", wide ? { class: "wide" } : {}, make("dt", {}, name), place));
    }
    write(place, text);
    if (place.className !== kind) place.className = kind;
  }
}

let regions = 0;

class Table {
  // `columns`: [heading, class] each; the first cell of a row is its heading. `heads` fills a
  // heading of the table, otherwise it is the text.
  constructor(caption, columns, heads = (name) => name) {
    const id = `region${++regions}`;
    this.columns = columns;
    this.caption = make("caption", { id }, caption);
    this.body = make("tbody");
    this.heads = columns.map(([name, kind], at) => make("th", { scope: "col", class: kind || "" }, heads(name, at)));
    const table = make("table", {}, this.caption, make("thead", {}, make("tr", {}, ...this.heads)), this.body);
    this.element = make("div", { class: "scroll", role: "region", tabindex: "0", "aria-labelledby": id }, table);
    this.rows = new Map();
  }

  // `rows`: a list of cells for each key; a cell is text, or [text, class, symbol].
  fill(rows) {
    for (const [key, row] of this.rows) {
      if (!rows.has(key)) {
        row.remove();
        this.rows.delete(key);
      }
    }
    let place = this.body.firstElementChild;
    for (const [key, cells] of rows) {
      let row = this.rows.get(key);
      if (!row) {
        row = make("tr", {}, ...cells.map((_, at) => (at ? make("td") : make("th", { scope: "row" }))));
        this.rows.set(key, row);
      }
      if (row !== place) this.body.insertBefore(row, place);
      else place = place.nextElementSibling;
      cells.forEach((cell, at) => this.#write(row.children[at], cell, this.columns[at][1]));
    }
    this.element.hidden = rows.size === 0;
  }

  #write(element, cell, kind) {
    const [text, more, symbol] = Array.isArray(cell) ? cell : [cell, "", ""];
    const name = `${kind || ""} ${more || ""}`.trim();
    if (element.className !== name) element.className = name;
    if (!symbol) return write(element, text);
    if (element.textContent !== `${symbol} ${text}`) {
      element.replaceChildren(make("span", { "aria-hidden": "true" }, `${symbol} `), text);
    }
  }
}

// A table whose rows are the worst first, until somebody clicks a heading; and only those that
// have all words of the filter. Rows are records: `cells`, what to sort their columns by
// (`values`), and how bad they are (`badness`, 0 and up).
class SortedTable {
  constructor(caption, columns) {
    this.column = null; // none: the worst first
    this.falls = false;
    this.rows = new Map();
    this.table = new Table(caption, columns, (name, at) => {
      const button = make("button", { type: "button", class: "sort" }, name);
      button.addEventListener("click", () => this.#sortBy(at));
      return button;
    });
    this.filter = make("input", { type: "search", placeholder: "address, state, zone, error" });
    this.filter.addEventListener("input", () => this.#show());
    this.shown = make("span", { role: "status" });
    const label = make("label", {}, "Only backends with ", this.filter);
    this.worst = make("button", { type: "button" }, "Worst first");
    this.worst.addEventListener("click", () => this.#sortBy(null));
    this.bar = make("p", { class: "bar" }, label, this.worst, this.shown);
    this.element = make("div", {}, this.bar, this.table.element);
  }

  fill(rows) {
    this.rows = rows;
    this.#show();
  }

  // The first click has the largest numbers on top, or texts from A; the second the contrary.
  #sortBy(column) {
    const kind = column === null ? "" : this.table.columns[column][1];
    this.falls = column !== null && (column === this.column ? !this.falls : !kind);
    this.column = column;
    this.#show();
  }

  #show() {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = ({ cells }) => cells.map((cell) => (Array.isArray(cell) ? cell[0] : cell)).join(" ").toLowerCase();
    const kept = [...this.rows].filter(([, row]) => words.length === 0 || words.every((word) => text(row).includes(word)));
    kept.sort(([, one], [, other]) => this.#compare(one, other));
    this.table.fill(new Map(kept.map(([key, { cells }]) => [key, cells])));
    this.table.heads.forEach((head, at) => {
      const order = at === this.column ? (this.falls ? "descending" : "ascending") : "none";
      if (head.getAttribute("aria-sort") !== order) head.setAttribute("aria-sort", order);
    });
    this.worst.setAttribute("aria-pressed", String(this.column === null));
    write(this.shown, words.length ? `${kept.length} of ${this.rows.size} shown` : "");
    this.bar.hidden = this.rows.size < 2;
  }

  #compare(one, other) {
    if (this.column === null) return other.badness - one.badness || compare(one.values[0], other.values[0]);
    const [a, b] = [one.values[this.column], other.values[this.column]];
    // What is not known is last, either way.
    if (a === null || b === null) return (a === null) - (b === null);
    return (this.falls ? -1 : 1) * compare(a, b) || compare(one.values[0], other.values[0]);
  }
}

const inOrder = new Intl.Collator("en", { numeric: true });
const compare = (a, b) => (typeof a === "number" ? a - b : inOrder.compare(a, b));

function folded(title, ...children) {
  return make("details", {}, make("summary", {}, title), ...children);
}

const stated = (state) => [state.replaceAll("_", " "), STATES[state]?.[1] || "", STATES[state]?.[0] || ""];

const CONFIG = [["Setting", "text"], ["Value", "long"], ["From", "text"]];

function fillConfig(table, config) {
  table.fill(new Map(config.map(({ name, value, source }) => [name, [name, value, [source, source === "default" ? "" : "warn"]]])));
}

class Section {
  constructor(id, parts) {
    this.heading = make("h2", { id: `${id}-title` });
    this.facts = new Facts();
    this.charts = parts.charts;
    const row = make("div", { class: "charts" }, ...this.charts.map((chart) => chart.element));
    this.element = make("section", { id, "aria-labelledby": `${id}-title` }, this.heading, this.facts.element, row, ...parts.rest);
    this.link = make("a", { href: `#${id}` });
    this.entry = make("li", {}, this.link);
    this.charts.forEach((chart) => charts.add(chart));
  }

  title(text) {
    write(this.heading, text);
    write(this.link, text);
  }

  remove() {
    this.charts.forEach((chart) => charts.delete(chart));
    this.element.remove();
    this.entry.remove();
  }
}

// --- a channel ---------------------------------------------------------------------------------

const labelled = (channel) => channel.name || channel.target;
const attempt = (number) => (number === "0" ? "first" : `retry ${number}${number === "2" ? " and later" : ""}`);
const ALARM = 0.5; // share of retries refused at which other backends are overloaded, too

const finished = (backend) => backend.served + backend.rejected + backend.failed + backend.abandoned + backend.declined;

// From samples of counts, the oldest first, to points of a chart: `tell` gets each with the
// rates of its first two numbers since the one before, null where they have begun anew.
function replay(samples, tell) {
  samples.forEach((sample, at) => {
    const [time, done, errors] = sample;
    const [then, ...was] = samples[at - 1] || [time];
    const sound = at > 0 && done >= was[0] && errors >= was[1];
    tell(sample, sound ? [(done - was[0]) / (time - then), (errors - was[1]) / (time - then)] : [null, null]);
  });
}

class ChannelSection extends Section {
  constructor(id) {
    const backends = new SortedTable("Backends; p50 and p99 of all methods together", [
      ["Backend", "text name"], ["State", "text"], ["Since"], ["Weight"], ["In flight"], ["Calls a second"], ["Errors"],
      ["p50"], ["p99"], ["Utilization"], ["Active"], ["Report"], ["Why here", "long"], ["Last error", "long"], ["Why in this state", "long"],
    ]);
    const events = new Table("The last events", [["Time", "text"], ["Ago", "text"], ["About", "text name"], ["Event", "long"], ["Why", "long"]]);
    const picks = new Table("The last picks", [["Ago", "text"], ["Backend", "text"], ["Why", "long"]]);
    const throttle = new Table("Throttle: requests of two minutes", [
      ["Criticality", "text"], ["Held back"], ["Accepted"], ["Refused there"], ["Refused here"],
    ]);
    const attempts = new Table("Attempts: are others overloaded, too?", [
      ["Attempt", "text"], ["Sent a second"], ["Of these refused"], ["Sent so far"], ["Refused so far"],
    ]);
    const config = new Table("Configuration of the channel", CONFIG);
    const traffic = new Chart("Calls a second", ["all", "errors"], rate);
    const latency = new Chart("Latency of all methods", ["p50", "p99"], milliseconds);
    const flight = new Chart("Calls under way", ["in flight", "waiting"], count);
    const load = new Chart("Utilization of backends", ["highest", "lowest"], percent);
    super(id, {
      charts: [traffic, latency, flight, load],
      rest: [
        backends.element, events.element, throttle.element, attempts.element,
        folded("Last picks", picks.element), folded("Configuration", config.element),
      ],
    });
    events.element.classList.add("few");
    Object.assign(this, { backends, events, picks, throttle, attempts, config, traffic, latency, flight, load });
  }

  begin(samples) {
    replay(samples, ([time, , , inFlight, waiting, highest, lowest], rates) => {
      this.traffic.add(time, rates);
      this.flight.add(time, [inFlight, waiting]);
      this.load.add(time, [highest, lowest]);
    });
  }

  show(channel, before, elapsed, time) {
    this.title(`Channel ${labelled(channel)}`);
    const old = new Map(before.backends.map((backend) => [backend.address, backend]));
    let calls = 0;
    let errors = 0;
    const rows = new Map();
    for (const backend of channel.backends) {
      const was = old.get(backend.address);
      const done = was && elapsed ? Math.max(0, finished(backend) - finished(was)) : 0;
      const wrong = was && elapsed ? Math.max(0, backend.failed + backend.rejected - was.failed - was.rejected) : 0;
      calls += done;
      errors += wrong;
      rows.set(backend.address, this.#row(backend, was && elapsed ? done / elapsed : null, done ? wrong / done : null));
    }
    this.backends.fill(rows);
    write(this.backends.table.caption, `Backends: ${channel.backends.length}, of ${count(channel.resolver.endpoints)} endpoints`
      + (channel.backends_left_out ? `; ${channel.backends_left_out} more are not shown` : ""));
    this.#facts(channel, elapsed ? calls / elapsed : null, calls ? errors / calls : null);
    this.throttle.fill(new Map(channel.throttle.map((one) => [one.criticality, [
      one.criticality, percent(one.probability), count(one.accepted), count(one.refused_there), count(one.refused_here),
    ]])));
    this.#attempts(channel, before, elapsed);
    write(this.picks.caption, `The last picks. ${channel.rule}`);
    this.picks.fill(new Map(channel.picks.map((pick, place) => [place, [age(pick.age), pick.backend, pick.because]])));
    this.events.fill(new Map(channel.events.map((event, place) => [place, [
      clock(time - event.age), age(event.age), event.about, event.what, event.why,
    ]])));
    fillConfig(this.config, channel.config);
    if (elapsed) this.traffic.add(time, [calls / elapsed, errors / elapsed]);
    this.latency.add(time, [channel.p50, channel.p99]);
    this.flight.add(time, [channel.in_flight, channel.waiting]);
    const told = channel.backends.map((backend) => backend.utilization).filter((value) => value !== null);
    this.load.add(time, told.length ? [Math.max(...told), Math.min(...told)] : [null, null]);
  }

  #attempts(channel, before, elapsed) {
    const rows = new Map();
    const again = { sent: 0, refused: 0 };
    for (const [number, total] of Object.entries(channel.sent_attempts)) {
      const sent = Math.max(0, total - (before.sent_attempts[number] || 0));
      const refused = Math.max(0, channel.refused_attempts[number] - (before.refused_attempts[number] || 0));
      const share = sent ? Math.min(1, refused / sent) : null;
      if (number !== "0") {
        again.sent += sent;
        again.refused += refused;
      }
      rows.set(number, [
        attempt(number), rate(elapsed ? sent / elapsed : null), [percent(share), share ? "ill" : ""],
        count(total), count(channel.refused_attempts[number]),
      ]);
    }
    this.attempts.fill(sum(channel.refused_attempts) || channel.retries ? rows : new Map());
    const share = again.sent ? Math.min(1, again.refused / again.sent) : null;
    const others = share >= ALARM ? ": others are overloaded, too" : "";
    this.facts.set("Retries", share === null ? "none lately" : `${percent(share)} refused${others}`, { kind: others ? "ill" : "" });
  }

  #row(backend, calls, errors) {
    const ejected = backend.ejected.map((one) => `ejected for ${one.method} since ${age(one.age)}: ${one.why}`);
    const last = backend.last_error && `${backend.last_error}, ${age(backend.last_error_age)} ago`;
    const held = backend.recent_errors >= 0.05 ? [`${fixed(backend.recent_errors, 1)} recent errors held against it`] : [];
    const slowed = backend.is_slowed ? [`a request costs it ${fixed(backend.cost_rise, 1)} times as much as usual, compared with the others`] : [];
    if (backend.own_cost_rise >= SLOWED) slowed.push(`it says itself that a request costs it ${fixed(backend.own_cost_rise, 1)} times as much as usual, compared with the fleet`);
    const refused = backend.health_refused && !backend.reason.includes("are refused: ") ? [backend.health_refused] : [];
    const zone = backend.zone ? `, zone ${backend.zone}` : "";
    const place = backend.why + zone + (backend.priority ? `, priority ${backend.priority}` : "");
    const here = backend.task === null ? place : `task ${backend.task}, ${place}`;
    const first = backend.first_message === null ? [] : [`first message of a stream after ${milliseconds(backend.first_message)}`];
    const why = [backend.reason, ...first, ...refused, ...slowed, ...held, ...ejected].join("; ");
    const cells = [
      backend.address, stated(backend.state), age(backend.state_age), fixed(backend.weight), count(backend.in_flight),
      rate(calls), [percent(errors), errors ? "ill" : ""], milliseconds(backend.p50), milliseconds(backend.p99),
      percent(backend.utilization), count(backend.active), backend.report_age === null ? NONE : `${age(backend.report_age)} ago`,
      here, last || NONE, why,
    ];
    const values = [
      backend.address, backend.state, backend.state_age, backend.weight, backend.in_flight,
      calls, errors, backend.p50, backend.p99,
      backend.utilization, backend.active, backend.report_age,
      here, last || null, why,
    ];
    // By what is wrong now: that it is out, then that it is worse than others.
    const kind = stated(backend.state)[1];
    const trouble = refused.length + slowed.length + held.length + ejected.length;
    const badness = (kind === "ill" ? 8 : kind === "warn" ? 4 : 0) + (trouble ? 2 : 0) + (errors ? 1 + errors : 0);
    return { cells, values, badness };
  }

  #facts(channel, calls, errors) {
    const facts = this.facts;
    const [word, kind] = stated(channel.state);
    const states = new Map();
    for (const { state } of channel.backends) states.set(state, (states.get(state) || 0) + 1);
    const resolver = channel.resolver;
    facts.set("State", word, { kind });
    if (channel.name) facts.set("Target", channel.target, { wide: true });
    facts.set("Backends", [...states].map(([state, many]) => `${many} ${state}`).join(", ") || "none yet");
    facts.set("Calls a second", rate(calls));
    facts.set("Errors", percent(errors), { kind: errors ? "ill" : "" });
    facts.set("Latency of all methods, last 200 calls", `p50 ${milliseconds(channel.p50)}, p99 ${milliseconds(channel.p99)}`);
    facts.set("In flight", count(channel.in_flight));
    facts.set("Waiting for a backend", `${count(channel.waiting)} now, ${count(channel.waited)} so far`, { kind: channel.waiting ? "warn" : "" });
    if (channel.loop_stall_seconds) facts.set("Event loop", `stalled for ${milliseconds(channel.loop_stall_seconds)} so far`, { kind: "warn" });
    facts.set("Calls so far", Object.entries(channel.calls).map(([code, many]) => `${count(many)} ${code}`).join(", ") || "none");
    facts.set("Sent again", `${count(channel.resends)} not taken, ${count(channel.retries)} retries; ${fixed(channel.retries_left, 1)} left in the budget`);
    const withheld = sum(channel.hedges_withheld);
    if (channel.hedges || withheld) facts.set("Hedges", `${count(channel.hedges)} sent, ${count(channel.hedges_won)} won; ${count(withheld)} withheld`);
    facts.set("Throttled here", count(channel.throttled), { kind: channel.throttle.some((one) => one.probability > 0) ? "warn" : "" });
    facts.set("Beyond the subset", `${count(channel.replacements)} replacements, ${count(channel.draining)} draining`);
    if (channel.ejections) facts.set("Ejected", `${count(channel.ejected)} backends now, ${count(channel.ejections)} so far`, { kind: channel.ejected ? "warn" : "" });
    if (channel.zones.length) facts.set("Zones", zones(channel), { wide: true });
    if (channel.spilled) facts.set("Picks outside the first zone or priority", count(channel.spilled));
    if (channel.task_failures) facts.set("Background jobs failed", count(channel.task_failures), { kind: "ill" });
    facts.set("Picker", channel.picker);
    facts.set("Subset", `${count(channel.subset_size)} of ${count(resolver.endpoints)}: ${channel.subset}`, { wide: true });
    facts.set("Resolver", `${resolver.name}, ${count(resolver.updates)} ${resolver.updates === 1 ? "answer" : "answers"}, the last ${age(resolver.age)} ago`
      + (resolver.error ? `; now: ${resolver.error}` : ""), { wide: true, kind: resolver.error ? "ill" : "" });
  }
}

function zones(channel) {
  const ranked = channel.zones.some((one) => one.priority);
  return channel.zones.map((one) => {
    const name = [one.zone || "no zone", ...(ranked ? [`priority ${one.priority}`] : [])].join(", ");
    const limit = one.limit ? `, spills above ${percent(one.limit)}` : "";
    return `${name}: ${percent(one.share)} of calls, ${one.ready} of ${one.backends} ready, ${percent(one.utilization)} utilized${limit}`;
  }).join("; ");
}

// --- a server ----------------------------------------------------------------------------------

function served(server) {
  const ports = `Server ${server.ports.join(", ") || "without a port"}`;
  return server.worker_number ? `${ports}, worker ${server.worker_number}, process ${server.pid}` : ports;
}

class ServerSection extends Section {
  constructor(id) {
    const signals = new Table("Signals", [["Signal", "text"], ["Says"], ["Too much beyond"]]);
    const admitted = new Table("Admission", [["Criticality", "text"], ["Gets in"]]);
    const refused = new Table("Refused so far", [["Reason", "text"], ["Criticality", "text"], ["Requests"]]);
    const attempts = new Table("Attempts: are others overloaded, too?", [["Attempt", "text"], ["Of the last 4,000"], ["Requests so far"]]);
    const usage = new Table("Customers: CPU seconds a second", [["Customer", "text"], ["Uses"]]);
    const config = new Table("Configuration of the server", CONFIG);
    const traffic = new Chart("Requests a second", ["finished", "errors"], rate);
    const latency = new Chart("Latency of all methods", ["p50", "p99"], milliseconds);
    const active = new Chart("Active requests", ["active"], count);
    const load = new Chart("Utilization", ["utilization"], percent);
    super(id, {
      charts: [traffic, latency, active, load],
      rest: [signals.element, admitted.element, refused.element, attempts.element, usage.element, folded("Configuration", config.element)],
    });
    Object.assign(this, { signals, admitted, refused, attempts, usage, config, traffic, latency, active, load });
  }

  begin(samples) {
    replay(samples, ([time, , , active, utilization], rates) => {
      this.traffic.add(time, rates);
      this.active.add(time, [active]);
      this.load.add(time, [utilization]);
    });
  }

  show(server, before, elapsed, time) {
    this.title(served(server));
    const facts = this.facts;
    const [word, kind] = stated(server.state);
    facts.set("State", word, { kind });
    facts.set("Utilization", percent(server.utilization));
    const kept = server.contention;
    const lost = ["waiting", "throttled", "stolen"].map((kind) => `${kind} ${kept[kind] === null ? "unknown" : percent(kept[kind])}`);
    facts.set("Contention", lost.join(", "));
    facts.set("Event loop", `${percent(kept.loop)} busy, timers ${milliseconds(kept.lag)} late`);
    facts.set("Cost of requests", costed(server.cost), { kind: server.cost.is_slowed ? "ill" : "" });
    facts.set("Load for each processor", fixed(server.load, 1));
    facts.set("Requests a second", rate(server.qps));
    facts.set("Errors a second", rate(server.eps), { kind: server.eps >= 0.05 ? "ill" : "" });
    facts.set("Active", count(server.active));
    facts.set("Latency of all methods, last 200 requests", `p50 ${milliseconds(server.p50)}, p99 ${milliseconds(server.p99)}`);
    facts.set("Health and load streams", count(server.watchers));
    facts.set("Requests so far", Object.entries(server.requests).map(([code, many]) => `${count(many)} ${code}`).join(", "));
    facts.set("UDP health checks", server.udp.port
      ? `port ${server.udp.port}: ${count(server.udp.answered)} answered, ${count(server.udp.malformed + server.udp.forged + server.udp.limited)} dropped, ${count(server.udp.pushed)} clients told`
      : "not answered");
    if (server.task_failures) facts.set("Background jobs failed", count(server.task_failures), { kind: "ill" });
    if (server.signal_failures) facts.set("Signals without a sound number", count(server.signal_failures), { kind: "ill" });
    if (server.declined) facts.set("Declined, for another pick", count(server.declined));
    if (sum(server.misread)) facts.set("Metadata not understood", Object.entries(server.misread).map(([key, many]) => `${count(many)} ${key}`).join(", "));
    facts.set("Services", server.services.join(", "), { wide: true });
    this.signals.fill(new Map(server.signals.map(({ name, value, target }) => [name, [
      name, [fixed(value), target !== null && value > target ? "ill" : ""], target === null ? "never" : fixed(target),
    ]])));
    const holdsBack = Object.values(server.admitted).some((share) => share < 1);
    this.admitted.fill(new Map(holdsBack ? Object.entries(server.admitted).map(([name, share]) => [name, [name, [percent(share), share < 1 ? "ill" : ""]]]) : []));
    this.refused.fill(new Map(server.refused.map(({ reason, criticality, requests }) => [`${reason} ${criticality}`, [reason, criticality, count(requests)]])));
    const tried = server.attempts;
    this.attempts.fill(new Map(Object.entries(tried.requests).map(([number, many]) => [number, [
      attempt(number),
      [percent(tried.recent[number]), tried.others_refuse && number !== "0" ? "ill" : ""], count(many),
    ]])));
    facts.set("Retries", tried.others_refuse ? "in vain: others refuse, too" : "may find others", { kind: tried.others_refuse ? "ill" : "" });
    if (tried.withheld) facts.set("Stock clients", `${percent(tried.granted)} of requests may be retried; ${count(tried.withheld)} told not to, so far`);
    if (server.usage_left_out) facts.set("Customers not shown", count(server.usage_left_out));
    this.usage.fill(new Map(server.usage.map(({ customer, cpu }) => [customer, [customer || "(no name)", fixed(cpu)]])));
    fillConfig(this.config, server.config);
    if (elapsed) {
      const done = Math.max(0, sum(server.requests) - sum(before.requests)) / elapsed;
      const wrong = Math.max(0, sum(server.requests) - server.requests.OK - sum(before.requests) + before.requests.OK) / elapsed;
      this.traffic.add(time, [done, wrong]);
    }
    this.latency.add(time, [server.p50, server.p99]);
    this.active.add(time, [server.active]);
    this.load.add(time, [server.utilization]);
  }
}

// --- one that could not be described -----------------------------------------------------------

class UntoldSection extends Section {
  constructor(id) {
    super(id, { charts: [], rest: [] });
  }

  show({ kind, name, error }) {
    this.title(`${kind === "server" ? "Server" : "Channel"} ${name}`);
    this.facts.set("Cannot be described", error, { wide: true, kind: "ill" });
  }
}

// --- all of it ---------------------------------------------------------------------------------

const sections = new Map();
let kept = {}; // what the process remembers, by kind and number
let past = []; // the last snapshots, as far as rates go
let paused = false;
let shownSiblings = "[]";
let polls = 0;

function show(now) {
  const last = past.at(-1);
  const same = last && last.pid === now.pid && last.clock < now.clock;
  past = [...(same ? past.slice(-SPAN) : []), now];
  write(find("program"), now.program);
  write(find("process"), `${now.host}, process ${now.pid}: lbclient ${now.lbclient}, grpcio ${now.grpcio}, Python ${now.python}`);
  find("disabled").hidden = !now.disabled;
  const left = ["channels", "servers"].filter((name) => now[`${name}_left_out`]).map((name) => `${now[`${name}_left_out`]} ${name}`);
  write(find("left-out"), left.length ? `Not shown: ${left.join(", ")} more.` : "");
  const unused = now.unused_tables.join(", ");
  write(find("unused-tables"), unused && `Settings that no open channel takes, by its target or name: ${unused}`);
  document.title = `lbz: ${now.program}`;
  const wanted = new Map();
  const list = (kind, Kind, name) => {
    for (const one of now[name]) {
      const base = past.find((snapshot) => snapshot[name].some(({ number }) => number === one.number));
      const before = base[name].find(({ number }) => number === one.number);
      wanted.set(`${kind}${one.number}`, [Kind, one, before, now.clock - base.clock, kept[name]?.[one.number]]);
    }
  };
  list("channel", ChannelSection, "channels");
  list("server", ServerSection, "servers");
  for (const one of now.untold) wanted.set(`untold-${one.kind}${one.number}`, [UntoldSection, one]);
  for (const [id, section] of sections) {
    if (!wanted.has(id) || !same) {
      section.remove();
      sections.delete(id);
    }
  }
  for (const [id, [Kind, one, before, elapsed, samples]] of wanted) {
    let section = sections.get(id);
    if (!section) {
      section = new Kind(id);
      sections.set(id, section);
      find("main").append(section.element);
      find("contents").append(section.entry);
      if (samples) section.begin(samples);
    }
    section.show(one, before, elapsed, now.time);
  }
  find("empty").hidden = wanted.size > 0;
  if (same) announce(last, now);
}

// Changes of state are said aloud, and nothing else.
function announce(before, now) {
  const states = (snapshot) => new Map([
    ...snapshot.channels.flatMap((channel) => channel.backends.map((backend) => [`${backend.address} of ${labelled(channel)}`, backend.state])),
    ...snapshot.servers.map((server) => [served(server), server.state]),
  ]);
  const was = states(before);
  const news = [...states(now)].filter(([name, state]) => was.get(name) !== state).map(([name, state]) => `${name} is ${state}`);
  if (!news.length) return;
  const more = news.length > NEWS ? `, and ${news.length - NEWS} more` : "";
  write(find("news"), `${clock(now.time)}: ${news.slice(0, NEWS).join("; ")}${more}`);
}

// Pages on the next ports of the same host: other workers of this program, most likely.
function showSiblings(siblings) {
  const text = JSON.stringify(siblings);
  if (text === shownSiblings) return;
  shownSiblings = text;
  const links = siblings.flatMap(({ port, program, pid }, at) => {
    const url = new URL(location.href);
    url.port = port;
    url.hash = "";
    return [at ? ", " : "Other processes: ", make("a", { href: url.href }, `${program} ${pid}`)];
  });
  find("siblings").replaceChildren(...links);
}

async function get(path) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(TIMEOUT) });
  if (!answer.ok) throw new Error(`it says ${answer.status}`);
  return answer.json();
}

async function ask() {
  // First, and after a time without an answer, as it may be another process.
  if (!past.length || document.body.classList.contains("stale")) kept = await get("lbz/history.json").catch(() => ({}));
  const now = await get("lbz.json");
  if (now.version !== VERSION) throw new Error(`version ${now.version} of the JSON; load this page again`);
  return now;
}

async function poll() {
  if (!paused && !document.hidden) {
    try {
      const now = await ask();
      if (!paused) show(now);
      if (polls++ % SIBLINGS < 2) showSiblings(await get("lbz/siblings.json").catch(() => []));
      write(find("status"), `As of ${clock(now.time)}.`);
      document.body.classList.remove("stale");
    } catch (error) {
      const since = past.length ? clock(past.at(-1).time) : "the start";
      write(find("status"), `No answer since ${since}: ${error.message}`);
      document.body.classList.add("stale");
    }
  }
  setTimeout(poll, POLL);
}

find("pause").addEventListener("click", () => {
  paused = !paused;
  find("pause").setAttribute("aria-pressed", String(paused));
});

poll();
