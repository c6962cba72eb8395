// The picture: axes, curves, the handles of the selected curve, and the cursor that reads learning rates.
// Steps, levels and handles come from the server; this module only converts them to pixels.

import { LEFT, RIGHT, axisTitle, tickLabel, ticks } from "./axes.js";
import { formatLearningRate, formatStep, setProperties, svgElement } from "./elements.js";
import { completeHandle } from "./handle_values.js";
import { makeDraggable } from "./handles.js";
import { lineNames } from "./line_names.js";
import { DASHES } from "./looks.js";
import { ValueLabel } from "./value_label.js";

// Margins above and below the axes, in pixels.
const TOP = 18, BOTTOM = 38;

export class Picture {
  #svg;
  #listeners;
  #back = svgElement("g", { "aria-hidden": "true" });
  #lines = svgElement("g", { "aria-hidden": "true" });
  #names = svgElement("g", { "aria-hidden": "true" });
  #hits = svgElement("g", { "aria-hidden": "true" });  // wide invisible lines, to click on
  #cursor = svgElement("line", { class: "cursor", visibility: "hidden" });
  #reader;
  #handles = svgElement("g");
  #marks = new Map();
  #value = new ValueLabel();
  #valued;  // the name of a handle
  #curves = [];
  #step = null;
  #pressed = [0, 0];
  isDragging = false;

  // listeners.move and listeners.enqueue serve handles.js; listeners.read() is called when the cursor moves,
  // listeners.choose(id) when a curve is clicked on.
  constructor(svg, listeners) {
    this.#svg = svg;
    this.#listeners = listeners;
    this.#reader = svgElement("g", {
      class: "reader", role: "slider", tabindex: 0, "aria-label": "Step at which to read learning rates",
      keydown: (event) => this.#readByKey(event),
    }, svgElement("path", { d: "M0 -9 L7 3 H-7 Z" }));
    svg.append(this.#back, this.#lines, this.#names, this.#hits, this.#cursor, this.#reader, this.#handles, this.#value.node);
    svg.addEventListener("pointermove", (event) => this.#readAt(event));
    svg.addEventListener("pointerdown", (event) => {
      this.#pressed = [event.clientX, event.clientY];
      this.#readAt(event);
    });
    svg.addEventListener("click", (event) => this.#chooseAt(event));
    this.#handles.addEventListener("pointerdown", (event) => event.button === 0 && this.#nearestMark(event).begin(event));
    new ResizeObserver(() => this.draw(this.#curves)).observe(svg);
  }

  get step() {
    return this.#step;
  }

  // curves: {id, name, colour: a number, isSelected, answer}, where answer is the server's description.
  draw(curves) {
    this.#curves = curves;
    const box = this.#svg.getBoundingClientRect();
    if (!curves.length || !box.width) return;
    if (!this.isDragging) {  // axes that followed a drag would move under the pointer
      this.total = Math.max(...curves.map(({ answer }) => answer.total));
      this.highest = Math.max(...curves.map(({ answer }) => answer.peak)) || 1;
    }
    this.width = box.width - LEFT - RIGHT;
    this.height = box.height - TOP - BOTTOM;
    const selected = curves.find(({ isSelected }) => isSelected);
    this.peak = selected?.answer.peak;
    this.#back.replaceChildren(...this.#spans(selected), ...this.#axes());
    this.#lines.replaceChildren(...[...curves.filter((curve) => curve !== selected), ...(selected ? [selected] : [])]
      .map((curve) => this.#line(curve)));
    // The selected curve is at the bottom: clicks on curves that lie on one another take turns.
    this.#hits.replaceChildren(...[...(selected ? [selected] : []), ...curves.filter((curve) => curve !== selected)]
      .map((curve) => this.#hit(curve)));
    this.#drawHandles(selected);
    if (!this.isDragging) this.#names.replaceChildren(...this.#lineNames(curves));  // they would jump
    setProperties(this.#names, { visibility: this.isDragging ? "hidden" : null });
    this.#drawReader();
  }

  #lineNames(curves) {
    const lines = curves.map(({ name, colour, answer }) => ({
      name, colour, points: answer.steps.map((step, index) => [this.x(step), this.y(answer.peak * answer.levels[index])]),
    }));
    const box = { left: LEFT + 4, right: LEFT + this.width, top: 2, bottom: TOP + this.height - 22 };  // above the names of spans
    return lineNames(lines, box, [...this.#marks.values()].map(({ place }) => place));
  }

  x(step) {
    return LEFT + (step / (this.total * 1.03)) * this.width;
  }

  y(learningRate) {
    return TOP + (1 - learningRate / (this.highest * 1.12)) * this.height;
  }

  get stepsPerPixel() {
    return (this.total * 1.03) / this.width;
  }

  get learningRatePerPixel() {
    return (this.highest * 1.12) / this.height;
  }

  #points({ answer }) {
    const points = answer.steps.map((step, index) =>
      `${this.x(step).toFixed(1)},${this.y(answer.peak * answer.levels[index]).toFixed(1)}`);
    return points.filter((point, index) => point !== points[index - 1]).join(" ");
  }

  #hit(curve) {
    return svgElement("path", { d: `M${this.#points(curve)}`, class: `hit colour-${curve.colour}`, "data-id": curve.id });
  }

  #line(curve) {
    const { colour, isSelected, answer } = curve;
    const points = this.#points(curve);
    // A bar ends a curve that is shorter than another one.
    const [x, y] = points.split(" ").at(-1).split(",").map(Number);
    const end = answer.total < this.total ? svgElement("line", { class: `curve end colour-${colour}`, x1: x, x2: x, y1: y - 7, y2: y + 7 }) : "";
    return svgElement("g", {}, svgElement("polyline", {
      points, "stroke-dasharray": isSelected ? null : DASHES[colour],
      class: `curve colour-${colour} ${isSelected ? "selected" : ""}`,
    }), end);
  }

  *#spans(selected) {
    for (const [name, begin, after] of selected?.answer.spans ?? []) {
      const left = this.x(begin), width = Math.max(1, this.x(after) - left);
      yield svgElement("rect", { class: `span-${name}`, x: left, y: TOP, width, height: this.height });
      if (width > 52) {
        const label = svgElement("text", { class: "span-name", x: left + width / 2, y: TOP + this.height - 8, "text-anchor": "middle" });
        label.textContent = name;
        yield label;
      }
    }
  }

  *#axes() {
    const bottom = TOP + this.height;
    yield axisTitle("learning rate", { x: 6, y: 11 });
    yield axisTitle("step", { x: LEFT - 12, y: bottom + 30, "text-anchor": "end" });
    for (const learningRate of ticks(0, this.highest * 1.12, this.height / 46)) {
      const y = this.y(learningRate);
      yield svgElement("line", { class: learningRate ? "grid" : "axis", x1: LEFT, x2: LEFT + this.width, y1: y, y2: y });
      yield tickLabel(formatLearningRate(learningRate), { x: LEFT - 12, y: y + 4, "text-anchor": "end" });
    }
    for (const step of ticks(0, this.total * 1.03, this.width / 92, 1)) {
      yield svgElement("line", { class: "axis", x1: this.x(step), x2: this.x(step), y1: bottom, y2: bottom + 4 });
      yield tickLabel(formatStep(step), { x: this.x(step), y: bottom + 30, "text-anchor": step ? "middle" : "start" });
    }
  }

  // A handle keeps its mark from one drawing to the next: replacing its node would end a drag or lose the focus.
  #drawHandles(selected) {
    const { answer } = selected ?? {};
    const handles = (answer?.handles ?? []).map((handle) => completeHandle(handle, answer));
    const marks = new Map();
    for (const handle of handles) {
      const mark = this.#marks.get(handle.name) ?? this.#newMark(handle);
      marks.set(handle.name, mark);
      mark.handle = handle;
      const place = handle.look === "tag" ? [LEFT, this.y(handle.value)] : [this.x(handle.step), this.y(answer.peak * handle.level)];
      mark.place = place;
      const isShared = handles.some((other) => shareKnob(handle, other));
      setProperties(mark.node, {
        class: `handle colour-${selected.colour} ${isShared ? "both" : ""}`,
        transform: `translate(${place[0].toFixed(1)} ${place[1].toFixed(1)})`,
        "aria-valuenow": handle.value, "aria-valuemin": handle.low, "aria-valuemax": handle.high,
        "aria-valuetext": handle.text,
      });
    }
    this.#replaceNodes([...marks.values()].map(({ node }) => node));
    this.#marks = marks;
    this.#drawValue();
  }

  // Show the value at the handle that is dragged or moved with keys; at none if it is null.
  showValue(handle) {
    this.#valued = handle?.name;
    this.#drawValue();
  }

  #drawValue() {
    const mark = [...this.#marks.values()].find(({ handle }) => handle.name === this.#valued);
    this.#value.draw(mark, this.#svg.getBoundingClientRect());
  }

  // Moving a node in the page would also end a drag or lose the focus, so some stay out of order for a while.
  #replaceNodes(nodes) {
    for (const node of [...this.#handles.children]) if (!nodes.includes(node)) node.remove();
    nodes.forEach((node, index) => {
      if (this.#handles.children[index] === node) return;
      if (node.isConnected && (node === document.activeElement || this.isDragging)) return;
      this.#handles.insertBefore(node, this.#handles.children[index] ?? null);
    });
  }

  #newMark(handle) {
    const shape = {
      bar: () => svgElement("rect", { class: "mark", x: -14, y: -5, width: 28, height: 10, rx: 5 }),
      tag: () => svgElement("path", { class: "mark", d: "M-9 -8 H1 L9 0 L1 8 H-9 Z" }),
      knob: () => svgElement("circle", { class: "mark", r: 6.5 }),
    }[handle.look]();
    const mark = { handle };
    mark.node = svgElement("g", {
      role: "slider", tabindex: 0, "aria-label": handle.name, "data-key": `handle/${handle.name}`, "data-look": handle.look, "data-axis": handle.axis,
      "aria-orientation": handle.axis === "step" ? "horizontal" : "vertical",
    },
      svgElement("title"), svgElement("circle", { class: "reach", r: 16 }), svgElement("circle", { class: "ring", r: 13 }), shape);
    mark.node.querySelector("title").textContent = handle.name;
    makeDraggable(mark, this, () => [...this.#marks.values()].map((other) => other.handle)
      .filter((other) => shareKnob(mark.handle, other)), this.#listeners);
    return mark;
  }

  // The mark nearest to the pointer. Between close handles, the browser would choose the one on top.
  #nearestMark(event) {
    const distance = ({ node }) => {
      const box = node.querySelector(".mark").getBoundingClientRect();
      return Math.hypot(event.clientX - (box.left + box.right) / 2, event.clientY - (box.top + box.bottom) / 2);
    };
    return [...this.#marks.values()].reduce((nearest, mark) => (distance(mark) < distance(nearest) ? mark : nearest));
  }

  #readAt(event) {
    if (this.isDragging) return;
    const box = this.#svg.getBoundingClientRect();
    this.#moveReader((event.clientX - box.left - LEFT) * this.stepsPerPixel);
  }

  #chooseAt(event) {
    // The end of a drag of a handle, or of a drag to read, is also a click.
    const isDrag = Math.hypot(event.clientX - this.#pressed[0], event.clientY - this.#pressed[1]) > 4;
    if (isDrag || event.target.closest(".handle, .reader")) return;
    const hit = document.elementsFromPoint(event.clientX, event.clientY).find((node) => node.matches("#picture .hit"));
    if (hit) this.#listeners.choose(Number(hit.dataset.id));
  }

  #readByKey(event) {
    const small = Math.max(1, Math.round(this.total / 1000));
    const steps = { ArrowRight: small * 10, ArrowUp: small * 10, ArrowLeft: -small * 10, ArrowDown: -small * 10,
      PageUp: small * 100, PageDown: -small * 100, Home: -Infinity, End: Infinity }[event.key];
    if (steps === undefined) return;
    event.preventDefault();
    this.#moveReader((this.#step ?? 0) + (event.shiftKey ? Math.sign(steps) : steps));
  }

  #moveReader(step) {
    if (!this.total) return;
    this.#step = Math.round(Math.min(Math.max(step, 0), this.total));
    this.#drawReader();
    this.#listeners.read();
  }

  #drawReader() {
    const x = this.x(this.#step ?? 0), bottom = TOP + this.height;
    setProperties(this.#cursor, { x1: x, x2: x, y1: TOP, y2: bottom, visibility: this.#step === null ? "hidden" : "visible" });
    setProperties(this.#reader, {
      transform: `translate(${x.toFixed(1)} ${bottom + 11})`, "aria-valuemin": 0, "aria-valuemax": this.total,
      "aria-valuenow": this.#step ?? 0,
    });
  }

  // Set what a screen reader announces for the reading slider.
  announce(text) {
    setProperties(this.#reader, { "aria-valuetext": text });
  }
}

// True if two handles, one for the step and one for the level, lie at one point: their knob is dragged both ways.
function shareKnob(handle, other) {
  return handle !== other && handle.look === "knob" && other.look === "knob" && handle.axis !== other.axis &&
    handle.step === other.step && Math.abs(handle.level - other.level) < 1e-6;
}
