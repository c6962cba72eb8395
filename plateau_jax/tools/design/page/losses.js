// The picture of losses: those that were logged, the fitted law, and the forecast of each curve
// with its band. All numbers come from the server; this module only converts them to pixels.

import { Axes } from "./axes.js";
import { byId, element, svgElement } from "./elements.js";
import { DASHES } from "./looks.js";

// The fraction of a run whose steep beginning may lie above the axes.
const BEGINNING = 0.15;

export class LossPicture {
  #runs = [];
  #lines = [];

  constructor() {
    new ResizeObserver(() => this.#draw()).observe(byId("losses"));
  }

  // runs: {steps, losses, fitted_steps, fitted_losses}; lines: {name, colour, isSelected, text,
  // steps, losses, half_widths}, without steps if there is no forecast.
  draw(runs, lines) {
    this.#runs = runs;
    const drawn = lines.filter(({ steps }) => steps);
    this.#lines = drawn.sort((one, other) => one.isSelected - other.isSelected);  // the selected one on top
    byId("loss-legend").replaceChildren(
      element("span", {}, element("span", { class: "dot logged" }), "logged losses"),
      element("span", {}, element("span", { class: "dot fit" }), "fit"),
      ...lines.map(legendEntry));
    this.#draw();
  }

  #draw() {
    const svg = byId("losses");
    if (!this.#runs.length || !svg.getBoundingClientRect().width) return;
    const fits = this.#runs.map((run) => ({ steps: run.fitted_steps, losses: run.fitted_losses }));
    const ends = [...this.#runs, ...fits, ...this.#lines].map(({ steps }) => steps.at(-1));
    const [low, high] = rangeOf(this.#runs, [...fits, ...this.#lines]);
    const axes = new Axes(svg, 1.03 * Math.max(...ends), low, high);
    const area = { x: axes.left, y: axes.top, width: axes.width, height: axes.height };
    svg.replaceChildren(
      svgElement("clipPath", { id: "losses-area" }, svgElement("rect", area)),
      ...axes.draw("loss", (loss) => loss.toFixed(3)),
      svgElement("g", { "clip-path": "url(#losses-area)" },
        ...this.#lines.map((line) => bandOf(axes, line)),
        ...this.#lines.map((line) => curveOf(axes, line)),
        ...this.#runs.map((run) => dotsOf(axes, run)),
        ...fits.map((fit) => polyline(axes, fit, { class: "fit" }))));
  }
}

function legendEntry({ name, colour, text }) {
  const dot = element("span", { class: "dot" });
  return element("span", { class: `colour-${colour}` }, dot, `${name} `, element("b", {}, text));
}

const polyline = (axes, { steps, losses }, properties) =>
  svgElement("polyline", { ...properties, points: axes.points(steps, losses).join(" ") });

function curveOf(axes, line) {
  const dashes = line.isSelected ? null : DASHES[line.colour];
  const look = `curve colour-${line.colour} ${line.isSelected ? "selected" : ""}`;
  return polyline(axes, line, { class: look, "stroke-dasharray": dashes });
}

function bandOf(axes, line) {
  const upper = axes.points(line.steps, borderOf(line, 1));
  const lower = axes.points(line.steps, borderOf(line, -1));
  const outline = [...upper, ...lower.reverse()].join(" ");
  return svgElement("path", { class: `band colour-${line.colour}`, d: `M${outline}Z` });
}

function dotsOf(axes, { steps, losses }) {
  const dots = axes.points(steps, losses).map((point) => `M${point}h.01`);
  return svgElement("path", { class: "logged", d: dots.join("") });
}

// The losses at one border of a band, or those of a line without a band.
const borderOf = ({ losses, half_widths }, sign) =>
  losses.map((loss, index) => loss + sign * (half_widths?.[index] ?? 0));

// The least and the largest loss to show. Not the steep beginning of a run, and of the curves only
// what comes after it or is an end; nor a loss far from the others, as training losses have them.
function rangeOf(runs, lines) {
  const shown = [];
  for (const { steps, losses } of runs) {
    const sorted = lateValues(steps, losses, steps.at(-1)).sort((one, other) => one - other);
    const lowest = sorted[Math.floor(sorted.length * 0.02)];
    const highest = sorted[Math.ceil(sorted.length * 0.98) - 1];
    shown.push(lowest, highest);
  }
  const longest = Math.max(...runs.map(({ steps }) => steps.at(-1)));
  for (const line of lines) {
    shown.push(...lateValues(line.steps, borderOf(line, 1), longest));
    shown.push(...lateValues(line.steps, borderOf(line, -1), longest));
  }
  const low = Math.min(...shown);
  const high = Math.max(...shown);
  const margin = 0.06 * (high - low) || 0.01 * high;
  return [low - margin, high + margin];
}

const lateValues = (steps, values, last) =>
  values.filter((_, index) => steps[index] >= Math.min(BEGINNING * last, steps.at(-1)));
