// The picture: axes, curves, the handles of the chosen curve, and the step whose rates are read.
// Steps, levels and handles come from the server; here they only get their place in pixels.

import { drawn, ofRates, ofSteps, set } from "./elements.js";
import { dragging } from "./handles.js";

// In pixels, around the axes.
const LEFT = 58, RIGHT = 22, TOP = 18, BOTTOM = 38;
// Of each colour, so that lines differ without colours too. The curve that is edited has a full line.
export const DASHES = ["7 5", "2 3", "10 4", "10 4 2 4", "4 2", "14 3"];

export class Picture {
  #svg;
  #listeners;
  #back = drawn("g", { "aria-hidden": "true" });
  #lines = drawn("g", { "aria-hidden": "true" });
  #cursor = drawn("line", { class: "cursor", visibility: "hidden" });
  #reader;
  #handles = drawn("g");
  #marks = new Map();
  #curves = [];
  #step = null;
  isHeld = false;

  // listeners.move and listeners.inTurn for handles, listeners.read(step) for the step that is pointed at.
  constructor(svg, listeners) {
    this.#svg = svg;
    this.#listeners = listeners;
    this.#reader = drawn("g", {
      class: "reader", role: "slider", tabindex: 0, "aria-label": "Step to read the rates at",
      keydown: (event) => this.#readByKey(event),
    }, drawn("path", { d: "M0 -9 L7 3 H-7 Z" }));
    svg.append(this.#back, this.#lines, this.#cursor, this.#reader, this.#handles);
    svg.addEventListener("pointermove", (event) => this.#readAt(event));
    svg.addEventListener("pointerdown", (event) => this.#readAt(event));
    this.#handles.addEventListener("pointerdown", (event) => event.button === 0 && this.#nearest(event).begin(event));
    new ResizeObserver(() => this.draw(this.#curves)).observe(svg);
  }

  get step() {
    return this.#step;
  }

  // Each curve: {own: number of its colour, isChosen, peak, answer}.
  draw(curves) {
    this.#curves = curves;
    const box = this.#svg.getBoundingClientRect();
    if (!curves.length || !box.width) return;
    if (!this.isHeld) {
      this.total = Math.max(...curves.map(({ answer }) => answer.total));
      this.highest = Math.max(...curves.map(({ peak }) => peak)) || 1;
    }
    this.width = box.width - LEFT - RIGHT;
    this.height = box.height - TOP - BOTTOM;
    const chosen = curves.find(({ isChosen }) => isChosen);
    this.peak = chosen?.peak;
    this.#back.replaceChildren(...this.#spans(chosen), ...this.#axes());
    this.#lines.replaceChildren(...[...curves.filter((curve) => curve !== chosen), ...(chosen ? [chosen] : [])]
      .map((curve) => this.#line(curve)));
    this.#drawHandles(chosen);
    this.#drawReader();
  }

  x(step) {
    return LEFT + (step / (this.total * 1.03)) * this.width;
  }

  y(rate) {
    return TOP + (1 - rate / (this.highest * 1.12)) * this.height;
  }

  // What a move by a pixel is worth.
  get stepsAPixel() {
    return (this.total * 1.03) / this.width;
  }

  get ratesAPixel() {
    return (this.highest * 1.12) / this.height;
  }

  #line({ own, isChosen, peak, answer }) {
    const points = answer.steps.map((step, at) =>
      `${this.x(step).toFixed(1)},${this.y(peak * answer.levels[at]).toFixed(1)}`);
    const thinned = points.filter((point, at) => point !== points[at - 1]);
    return drawn("polyline", {
      points: thinned.join(" "), "stroke-dasharray": isChosen ? null : DASHES[own] || null,
      class: `curve own-${own} ${isChosen ? "chosen" : ""}`,
    });
  }

  *#spans(chosen) {
    for (const [name, begin, after] of chosen?.answer.spans ?? []) {
      const left = this.x(begin), width = Math.max(1, this.x(after) - left);
      yield drawn("rect", { class: `span-${name}`, x: left, y: TOP, width, height: this.height });
      if (width > 52) {
        const label = drawn("text", { class: "span-name", x: left + width / 2, y: TOP + this.height - 8, "text-anchor": "middle" });
        label.textContent = name;
        yield label;
      }
    }
  }

  *#axes() {
    const bottom = TOP + this.height;
    for (const rate of ticks(this.highest * 1.12, this.height / 46)) {
      const y = this.y(rate);
      yield drawn("line", { class: rate ? "grid" : "axis", x1: LEFT, x2: LEFT + this.width, y1: y, y2: y });
      yield words(ofRates(rate), { x: LEFT - 12, y: y + 4, "text-anchor": "end" });
    }
    for (const step of ticks(this.total * 1.03, this.width / 92)) {
      yield drawn("line", { class: "axis", x1: this.x(step), x2: this.x(step), y1: bottom, y2: bottom + 4 });
      yield words(ofSteps(step), { x: this.x(step), y: bottom + 30, "text-anchor": step ? "middle" : "start" });
    }
  }

  #drawHandles(chosen) {
    const handles = chosen?.answer.handles ?? [];
    const kept = new Map();
    for (const handle of handles) {
      const key = JSON.stringify([handle.name, handle.moves]);
      const mark = this.#marks.get(key) ?? this.#newMark(handle);
      kept.set(key, mark);
      mark.handle = handle;
      mark.level = chosen.peak * handle.level;
      const place = handle.look === "tag" ? [LEFT, this.y(handle.value)] : [this.x(handle.step), this.y(mark.level)];
      const isBoth = handles.some((other) => isOneKnob(handle, other));
      set(mark.node, {
        class: `handle own-${chosen.own} ${isBoth ? "both" : ""}`,
        transform: `translate(${place[0].toFixed(1)} ${place[1].toFixed(1)})`,
        "aria-valuenow": handle.value, "aria-valuemin": handle.low, "aria-valuemax": handle.high,
        "aria-valuetext": handle.text,
      });
    }
    const wanted = [...kept.values()].map(({ node }) => node);
    const isSame = wanted.length === this.#handles.children.length && wanted.every((node, at) => node === this.#handles.children[at]);
    if (!isSame) this.#replaceMarks(wanted);
    this.#marks = kept;
  }

  // Nodes that stay are not taken out of the page: a drag, or the focus, would end.
  #replaceMarks(wanted) {
    for (const node of [...this.#handles.children]) if (!wanted.includes(node)) node.remove();
    wanted.forEach((node, at) => {
      if (this.#handles.children[at] === node) return;
      if (node.isConnected && (node === document.activeElement || this.isHeld)) return;
      this.#handles.insertBefore(node, this.#handles.children[at] ?? null);
    });
  }

  #newMark(handle) {
    const shape = {
      bar: () => drawn("rect", { class: "mark", x: -14, y: -5, width: 28, height: 10, rx: 5 }),
      tag: () => drawn("path", { class: "mark", d: "M-9 -8 H1 L9 0 L1 8 H-9 Z" }),
      knob: () => drawn("circle", { class: "mark", r: 6.5 }),
    }[handle.look]();
    const mark = { handle };
    mark.node = drawn("g", {
      role: "slider", tabindex: 0, "aria-label": handle.name, "data-look": handle.look, "data-axis": handle.axis,
      "aria-orientation": handle.axis === "step" ? "horizontal" : "vertical",
    },
      drawn("title"), drawn("circle", { class: "reach", r: 16 }), drawn("circle", { class: "ring", r: 13 }), shape);
    mark.node.querySelector("title").textContent = handle.name;
    dragging(mark, this, () => [...this.#marks.values()].map((other) => other.handle)
      .filter((other) => isOneKnob(mark.handle, other)), this.#listeners);
    return mark;
  }

  // Where handles lie close to one another, the nearest is meant, not the one on top.
  #nearest(event) {
    const away = ({ node }) => {
      const box = node.querySelector(".mark").getBoundingClientRect();
      return Math.hypot(event.clientX - (box.left + box.right) / 2, event.clientY - (box.top + box.bottom) / 2);
    };
    return [...this.#marks.values()].reduce((nearest, mark) => (away(mark) < away(nearest) ? mark : nearest));
  }

  #readAt(event) {
    if (this.isHeld) return;
    const box = this.#svg.getBoundingClientRect();
    this.#read((event.clientX - box.left - LEFT) * this.stepsAPixel);
  }

  #readByKey(event) {
    const small = Math.max(1, Math.round(this.total / 1000));
    const steps = { ArrowRight: small * 10, ArrowUp: small * 10, ArrowLeft: -small * 10, ArrowDown: -small * 10,
      PageUp: small * 100, PageDown: -small * 100, Home: -Infinity, End: Infinity }[event.key];
    if (steps === undefined) return;
    event.preventDefault();
    this.#read((this.#step ?? 0) + (event.shiftKey ? Math.sign(steps) : steps));
  }

  #read(step) {
    if (!this.total) return;
    this.#step = Math.round(Math.min(Math.max(step, 0), this.total));
    this.#drawReader();
    this.#listeners.read(this.#step);
  }

  #drawReader() {
    const x = this.x(this.#step ?? 0), bottom = TOP + this.height;
    set(this.#cursor, { x1: x, x2: x, y1: TOP, y2: bottom, visibility: this.#step === null ? "hidden" : "visible" });
    set(this.#reader, {
      transform: `translate(${x.toFixed(1)} ${bottom + 11})`, "aria-valuemin": 0, "aria-valuemax": this.total,
      "aria-valuenow": this.#step ?? 0,
    });
  }

  // What the slider that reads says.
  say(text) {
    set(this.#reader, { "aria-valuetext": text });
  }
}

// A knob where one handle moves the step and another the level is dragged both ways.
function isOneKnob(handle, other) {
  return handle !== other && handle.look === "knob" && other.look === "knob" && handle.axis !== other.axis &&
    handle.step === other.step && Math.abs(handle.level - other.level) < 1e-6;
}

function words(text, properties) {
  const found = drawn("text", { class: "tick", ...properties });
  found.textContent = text;
  return found;
}

// Round numbers from 0 to `end`, about `many` of them.
function ticks(end, many) {
  const least = end / Math.max(2, Math.min(many, 8));
  const size = 10 ** Math.floor(Math.log10(least));
  const apart = [1, 2, 5, 10].map((times) => times * size).find((step) => step >= least * 0.999);
  return Array.from({ length: Math.floor(end / apart) + 1 }, (_, at) => Number((at * apart).toPrecision(6)));
}
