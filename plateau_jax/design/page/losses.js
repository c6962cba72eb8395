// The picture of losses: those that were logged, the fitted law, and the forecast of each curve with its band.
// All numbers come from the server; this module only converts them to pixels, and lists them in a table.

import { LEFT, RIGHT, axisTitle, tickLabel, ticks } from "./axes.js";
import { byId, element, formatStep, svgElement } from "./elements.js";
import { DASHES } from "./looks.js";

// Margins above and below the axes, in pixels.
const TOP = 22, BOTTOM = 40;
// The fraction of a run whose steep beginning may lie above the axes.
const BEGINNING = 0.15;
const MAX_ROWS = 8;  // of the table, for each line

export class LossPicture {
  #runs = [];
  #lines = [];

  constructor() {
    new ResizeObserver(() => this.#drawPicture()).observe(byId("losses"));
    byId("loss-table").addEventListener("toggle", () => this.#drawTable());
  }

  // runs: {name, steps, losses, fitted_steps, fitted_losses}; lines: {name, colour, isSelected, text, steps, losses,
  // half_widths}, without steps if there is no forecast.
  draw(runs, lines) {
    this.#runs = runs;
    this.#lines = lines;
    byId("loss-legend").replaceChildren(
      element("span", {}, element("span", { class: "dot logged" }), "logged losses"),
      element("span", {}, element("span", { class: "dot fit" }), "fit"),
      ...lines.map(({ name, colour, text }) => element("span", { class: `colour-${colour}` },
        element("span", { class: "dot" }), `${name} `, element("b", {}, text))));
    this.#drawPicture();
    this.#drawTable();
  }

  #drawPicture() {
    const svg = byId("losses"), box = svg.getBoundingClientRect();
    if (!this.#runs.length || !box.width) return;
    const lines = this.#lines.filter(({ steps }) => steps);
    const fits = this.#runs.map((run) => ({ steps: run.fitted_steps, losses: run.fitted_losses }));
    const end = 1.03 * Math.max(...[...this.#runs, ...fits, ...lines].map(({ steps }) => steps.at(-1)));
    const [low, high] = rangeOf(this.#runs, [...fits, ...lines]);
    const width = box.width - LEFT - RIGHT, height = box.height - TOP - BOTTOM;
    const x = (step) => (LEFT + (step / end) * width).toFixed(1);
    const y = (loss) => (TOP + ((high - loss) / (high - low)) * height).toFixed(1);
    const points = (steps, losses) => steps.map((step, index) => `${x(step)},${y(losses[index])}`);
    const plotted = svgElement("g", { "clip-path": "url(#losses-area)" },
      ...lines.map(({ colour, steps, losses, half_widths }) => svgElement("path", { class: `band colour-${colour}`, d: `M${[
        ...points(steps, losses.map((loss, index) => loss + half_widths[index])),
        ...points(steps, losses.map((loss, index) => loss - half_widths[index])).reverse()].join(" ")}Z` })),
      ...[...lines].sort((one, other) => one.isSelected - other.isSelected).map(({ colour, isSelected, steps, losses }) => svgElement("polyline", {
        class: `curve colour-${colour} ${isSelected ? "selected" : ""}`, "stroke-dasharray": isSelected ? null : DASHES[colour], points: points(steps, losses).join(" "),
      })),
      ...this.#runs.map(({ steps, losses }) => svgElement("path", { class: "logged", d: points(steps, losses).map((point) => `M${point}h.01`).join("") })),
      ...fits.map(({ steps, losses }) => svgElement("polyline", { class: "fit", points: points(steps, losses).join(" ") })));
    svg.replaceChildren(
      svgElement("clipPath", { id: "losses-area" }, svgElement("rect", { x: LEFT, y: TOP, width, height })),
      ...axes({ low, high, end, width, height, x, y }), plotted);
  }

  #drawTable() {
    const details = byId("loss-table");
    if (!details.open) return;
    const rows = (name, { steps, losses, half_widths }) => element("tbody", {}, ...evenly(steps.length).map((index, row, all) => {
      const [step, loss, half] = [steps[index], losses[index], half_widths?.[index]];
      return element("tr", {}, row ? null : element("th", { scope: "rowgroup", rowspan: all.length }, name),
        ...[formatStep(step), loss.toFixed(3), half === undefined ? "" : `${(loss - half).toFixed(3)} to ${(loss + half).toFixed(3)}`]
          .map((text) => element("td", { class: "number" }, text)));
    }));
    details.querySelector("table").replaceChildren(
      element("thead", {}, element("tr", {}, ...["Line", "Step", "Loss", "Interval"].map((text, column) =>
        element("th", { scope: "col", class: column ? "number" : null }, text)))),
      ...this.#lines.filter(({ steps }) => steps).map((line) => rows(`${line.name}, forecast`, line)),
      ...this.#runs.flatMap((run) => [rows(`${run.name}, logged`, run), rows(`${run.name}, fit`, { steps: run.fitted_steps, losses: run.fitted_losses })]));
  }
}

// The least and the largest loss to show. Not the steep beginning of a run, and of the curves only what comes after it
// or is an end; nor a loss far from the others, as training losses have them.
function rangeOf(runs, lines) {
  const longest = Math.max(...runs.map(({ steps }) => steps.at(-1)));
  const late = ({ steps, losses }, last = steps.at(-1)) =>
    losses.filter((_, index) => steps[index] >= Math.min(BEGINNING * last, steps.at(-1)));
  const inner = runs.flatMap((run) => {
    const sorted = late(run).sort((one, other) => one - other);
    return [sorted[Math.floor(sorted.length * 0.02)], sorted[Math.ceil(sorted.length * 0.98) - 1]];
  });
  const bands = lines.flatMap((line) => [-1, 1].flatMap((sign) =>
    late({ ...line, losses: line.losses.map((loss, index) => loss + sign * (line.half_widths?.[index] ?? 0)) }, longest)));
  const shown = [...inner, ...bands];
  const low = Math.min(...shown), high = Math.max(...shown);
  const margin = 0.06 * (high - low) || 0.01 * high;
  return [low - margin, high + margin];
}

function* axes({ low, high, end, width, height, x, y }) {
  const bottom = TOP + height;
  const losses = ticks(low, high, height / 40);
  const decimals = Math.max(0, ...losses.map((loss) => (String(loss).split(".")[1] ?? "").length));
  for (const loss of losses) {
    yield svgElement("line", { class: "grid", x1: LEFT, x2: LEFT + width, y1: y(loss), y2: y(loss) });
    yield tickLabel(loss.toFixed(decimals), { x: LEFT - 12, y: Number(y(loss)) + 4, "text-anchor": "end" });
  }
  yield svgElement("line", { class: "axis", x1: LEFT, x2: LEFT + width, y1: bottom, y2: bottom });
  for (const step of ticks(0, end, width / 92, 1)) {
    yield svgElement("line", { class: "axis", x1: x(step), x2: x(step), y1: bottom, y2: bottom + 4 });
    yield tickLabel(formatStep(step), { x: x(step), y: bottom + 18, "text-anchor": step ? "middle" : "start" });
  }
  yield axisTitle("loss", { x: LEFT - 12, y: TOP - 9, "text-anchor": "end" });
  yield axisTitle("step", { x: LEFT + width, y: bottom + 34, "text-anchor": "end" });
}

// At most MAX_ROWS indices below a length, the first and the last among them.
const evenly = (length) => [...new Set(Array.from({ length: MAX_ROWS }, (_, row) => Math.round((row * (length - 1)) / (MAX_ROWS - 1))))];
