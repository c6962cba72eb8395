// The picture of losses: those that were logged, the fitted law, and the forecast of each curve with its band.
// All numbers come from the server; this module only converts them to pixels, and lists them in a table.

import { Axes } from "./axes.js";
import { byId, element, formatStep, svgElement } from "./elements.js";
import { DASHES } from "./looks.js";

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
    const svg = byId("losses");
    if (!this.#runs.length || !svg.getBoundingClientRect().width) return;
    const lines = this.#lines.filter(({ steps }) => steps).sort((one, other) => one.isSelected - other.isSelected);
    const fits = this.#runs.map((run) => ({ steps: run.fitted_steps, losses: run.fitted_losses }));
    const end = 1.03 * Math.max(...[...this.#runs, ...fits, ...lines].map(({ steps }) => steps.at(-1)));
    const axes = new Axes(svg, end, ...rangeOf(this.#runs, [...fits, ...lines]));
    const area = { x: axes.left, y: axes.top, width: axes.width, height: axes.height };
    const borderOf = ({ steps, losses, half_widths }, sign) => axes.points(steps, losses.map((loss, index) => loss + sign * half_widths[index]));
    svg.replaceChildren(
      svgElement("clipPath", { id: "losses-area" }, svgElement("rect", area)),
      ...axes.draw("loss", (loss) => loss.toFixed(3)),
      svgElement("g", { "clip-path": "url(#losses-area)" },
        ...lines.map((line) => svgElement("path", { class: `band colour-${line.colour}`, d: `M${[...borderOf(line, 1), ...borderOf(line, -1).reverse()].join(" ")}Z` })),
        ...lines.map(({ colour, isSelected, steps, losses }) => svgElement("polyline", {
          class: `curve colour-${colour} ${isSelected ? "selected" : ""}`, "stroke-dasharray": isSelected ? null : DASHES[colour], points: axes.points(steps, losses).join(" "),
        })),
        ...this.#runs.map(({ steps, losses }) => svgElement("path", { class: "logged", d: axes.points(steps, losses).map((point) => `M${point}h.01`).join("") })),
        ...fits.map(({ steps, losses }) => svgElement("polyline", { class: "fit", points: axes.points(steps, losses).join(" ") }))));
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
      details.querySelector("thead"),
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

// At most MAX_ROWS indices below a length, the first and the last among them.
const evenly = (length) => [...new Set(Array.from({ length: MAX_ROWS }, (_, row) => Math.round((row * (length - 1)) / (MAX_ROWS - 1))))];
