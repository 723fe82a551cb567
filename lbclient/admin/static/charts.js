// Histories of a quarter of an hour, and their charts: what the process has kept, once in 5 s,
// and from then on what is polled. All that they show last is on the page as numbers, too; where
// uPlot is missing there are only those.
"use strict";

const LENGTH = 900; // seconds
const HEIGHT = 110;
const still = matchMedia("(prefers-reduced-motion: reduce)");
const STILL_EVERY = 5; // polls between two drawings, for those who want less motion

const WHOLE = [0, 1, 2, 3, 4, 5].flatMap((power) => [1, 2, 5].map((one) => one * 10 ** power));
const clock = (time) => new Date(time * 1000).toTimeString().slice(0, 8);
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

class Chart {
  // `names` of one or two lines, of which the second is dashed.
  constructor(title, names, format) {
    this.title = title;
    this.names = names;
    this.format = format;
    this.data = [[], ...names.map(() => [])];
    this.drawn = 0;
    this.plot = null;
    this.element = document.createElement("div");
    this.element.className = "chart";
    const heading = document.createElement("h3");
    heading.textContent = title;
    const legend = document.createElement("p");
    this.values = names.map((_, place) => {
      const value = document.createElement("span");
      value.className = place ? "second" : "first";
      legend.append(value);
      return value;
    });
    this.canvas = document.createElement("div");
    this.canvas.setAttribute("role", "img");
    this.element.append(heading, legend, this.canvas);
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  add(time, values) {
    const last = this.data[0].at(-1);
    if (last !== undefined && time <= last) return;
    this.data[0].push(time);
    values.forEach((value, place) => this.data[place + 1].push(value));
    while (this.data[0][0] < time - LENGTH) for (const line of this.data) line.shift();
    const said = this.names.map((name, place) => `${name} ${this.format(values[place])}`);
    said.forEach((text, place) => (this.values[place].textContent = text));
    this.canvas.setAttribute("aria-label", `${this.title} of the last minutes: now ${said.join(", ")}`);
    if (!still.matches || this.drawn++ % STILL_EVERY === 0) this.draw();
  }

  draw() {
    if (typeof uPlot === "undefined" || !this.canvas.clientWidth || this.data[0].length < 2) return;
    if (!this.plot) {
      this.plot = new uPlot(this.options(), this.data, this.canvas);
      return;
    }
    if (this.plot.width !== this.canvas.clientWidth) {
      this.plot.setSize({ width: this.canvas.clientWidth, height: HEIGHT });
    }
    this.plot.setData(this.data);
  }

  options() {
    const axis = { stroke: () => color("--soft"), grid: { stroke: () => color("--grid"), width: 1 }, ticks: { show: false } };
    return {
      width: this.canvas.clientWidth,
      height: HEIGHT,
      padding: [null, 30, null, null], // half of a label
      legend: { show: false },
      cursor: { show: false },
      scales: { x: { time: true }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [
        { ...axis, space: 90, size: 24, values: (_, times) => times.map((time) => clock(time)) },
        { ...axis, space: 30, size: 62, incrs: this.format === count ? WHOLE : undefined, values: (_, values) => values.map(this.format) },
      ],
      series: [{}, ...this.names.map((_, place) => ({
        stroke: () => color(place ? "--second" : "--first"),
        width: 2,
        dash: place ? [6, 4] : undefined,
        points: { show: false },
      }))],
    };
  }

  redraw() {
    this.plot?.redraw(true, true);
  }
}

const charts = new Set();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((chart) => chart.redraw()));
