// The picture: axes, curves, the handles of the selected curve, and the cursor that reads learning
// rates. Steps, levels and handles come from the server; this module only converts them to pixels.

import { Axes } from "./axes.js";
import { setProperties, svgElement } from "./elements.js";
import { KEY_INCREMENTS, lookOf, makeDraggable, textOf } from "./handles.js";
import { DASHES } from "./looks.js";

const MIN_NAMED_WIDTH = 52;  // of a span, in pixels: the name of a narrower one would not fit

export class Picture {
  #svg;
  #listeners;
  #back = svgElement("g", { "aria-hidden": "true" });
  #lines = svgElement("g", { "aria-hidden": "true" });
  #hits = svgElement("g", { "aria-hidden": "true" });  // wide invisible lines, to click on
  #cursor = svgElement("line", { class: "cursor", visibility: "hidden" });
  #reader;
  #handles = svgElement("g");
  /** @type {Map<string, Mark>} */ #marks = new Map();  // by the handle's name
  #axes;
  /** @type {VisibleEntry[]} */ #curves = [];
  /** @type {string | null} */ #dragged = null;  // the name of a handle
  #pressed = { x: 0, y: 0 };  // where the pointer went down last
  /** @type {number | null} */ step = null;  // at the cursor
  total = 1;  // the steps of the longest curve
  highest = 1;  // the highest peak

  /** @param {SVGSVGElement} svg @param {PictureListeners} listeners */
  constructor(svg, listeners) {
    this.#svg = svg;
    this.#listeners = listeners;
    this.#axes = new Axes(svg, this.total, this.highest);
    this.#reader = svgElement("g", {
      class: "reader",
      role: "slider",
      tabindex: 0,
      "aria-label": "Step at which to read learning rates",
      keydown: /** @param {KeyboardEvent} event */ (event) => this.#readByKey(event),
    }, svgElement("path", { d: "M0 -9 L7 3 H-7 Z" }));
    svg.append(this.#back, this.#lines, this.#hits, this.#cursor, this.#reader, this.#handles);
    svg.addEventListener("pointermove", (event) => this.#readAt(event));
    svg.addEventListener("pointerdown", (event) => {
      this.#pressed = { x: event.clientX, y: event.clientY };
      this.#readAt(event);
    });
    svg.addEventListener("click", (event) => this.#chooseAt(event));
    this.#handles.addEventListener("pointerdown", (event) => {
      if (event.button === 0) this.#nearestMark(event).begin(event);
    });
    new ResizeObserver(() => this.draw(this.#curves)).observe(svg);
  }

  get isDragging() {
    return this.#dragged !== null;
  }

  // Show the value of a handle while it is dragged; null ends the drag.
  drag(/** @type {Handle | null} */ handle) {
    this.#dragged = handle?.name ?? null;
    for (const [name, { node }] of this.#marks) node.classList.toggle("dragged", name === this.#dragged);
  }

  draw(/** @type {VisibleEntry[]} */ curves) {
    this.#curves = curves;
    if (!curves.length || !this.#svg.getBoundingClientRect().width) return;
    if (!this.isDragging) {  // axes that followed a drag would move under the pointer
      this.total = Math.max(...curves.map(({ answer }) => answer.total));
      this.highest = Math.max(...curves.map(({ answer }) => answer.peak)) || 1;
    }
    this.#axes = new Axes(this.#svg, this.total * 1.03, this.highest * 1.12);
    const front = curves.filter(({ isSelected }) => isSelected);  // at most one
    const others = curves.filter(({ isSelected }) => !isSelected);
    this.#back.replaceChildren(...this.#spans(front[0]), ...this.#axes.draw());
    this.#lines.replaceChildren(...[...others, ...front].map((curve) => this.#line(curve)));
    // The selected curve is at the bottom: clicks on curves that lie on one another take turns.
    this.#hits.replaceChildren(...[...front, ...others].map((curve) => this.#hit(curve)));
    this.#drawHandles(front[0]);
    this.#drawReader();
  }

  // The change along an axis that pixels to the right and upwards are; of a level for the selected
  // curve's peak.
  /** @param {Handle["axis"]} axis @param {number} right */
  distance(axis, right, up = 0) {
    if (axis === "step") return right / (this.#axes.x(1) - this.#axes.x(0));
    const change = (up / this.#axes.height) * this.#axes.high;
    if (axis === "learning_rate") return change;
    const peak = this.#curves.find(({ isSelected }) => isSelected)?.answer.peak;
    return peak ? change / peak : 0;
  }

  // Curves

  #points(/** @type {VisibleEntry} */ { answer }) {
    const points = answer.steps.map((step, index) => {
      const y = this.#axes.y(answer.peak * answer.levels[index]);
      return `${this.#axes.x(step).toFixed(1)},${y.toFixed(1)}`;
    });
    return points.filter((point, index) => point !== points[index - 1]).join(" ");
  }

  #line(/** @type {VisibleEntry} */ curve) {
    const { colour, isSelected, answer } = curve;
    const line = svgElement("polyline", {
      points: this.#points(curve),
      "stroke-dasharray": isSelected ? null : DASHES[colour],
      class: `curve colour-${colour} ${isSelected ? "selected" : ""}`,
    });
    return svgElement("g", {}, line, answer.total < this.total ? this.#endBar(curve) : null);
  }

  // The bar at the end of a curve that is shorter than another one.
  #endBar(/** @type {VisibleEntry} */ { answer, colour }) {
    const x = this.#axes.x(answer.total);
    const y = this.#axes.y(answer.peak * answer.levels[answer.levels.length - 1]);
    return svgElement("line", { class: `curve end colour-${colour}`, x1: x, x2: x, y1: y - 7, y2: y + 7 });
  }

  #hit(/** @type {VisibleEntry} */ curve) {
    const look = `hit colour-${curve.colour}`;
    return svgElement("path", { d: `M${this.#points(curve)}`, class: look, "data-id": curve.id });
  }

  // The warmup and the plateaus of the selected curve, if there is one, as coloured areas with
  // their names.
  *#spans(/** @type {VisibleEntry | undefined} */ selected) {
    const { top, bottom, height } = this.#axes;
    for (const [name, begin, after] of selected?.answer.spans ?? []) {
      const left = this.#axes.x(begin);
      const width = Math.max(1, this.#axes.x(after) - left);
      yield svgElement("rect", { class: `span-${name}`, x: left, y: top, width, height });
      if (width > MIN_NAMED_WIDTH) {
        const place = { x: left + width / 2, y: bottom - 8, "text-anchor": "middle" };
        yield svgElement("text", { class: "span-name", ...place }, name);
      }
    }
  }

  #chooseAt(/** @type {MouseEvent} */ event) {
    // The end of a drag of a handle, or of a drag to read, is also a click.
    const isDrag = Math.hypot(event.clientX - this.#pressed.x, event.clientY - this.#pressed.y) > 4;
    const target = /** @type {Element} */ (event.target);
    if (isDrag || target.closest(".handle, .reader")) return;
    const nodes = document.elementsFromPoint(event.clientX, event.clientY);
    const hit = nodes.find((node) => node.matches("#picture .hit"));
    if (hit) this.#listeners.choose(Number(hit.getAttribute("data-id")));
  }

  // Handles

  // A handle keeps its mark from one drawing to the next: replacing its node would end a drag.
  #drawHandles(/** @type {VisibleEntry | undefined} */ selected) {
    const marks = new Map();
    if (selected === undefined) return this.#setMarks(marks);
    const { answer, colour } = selected;
    for (const handle of answer.handles) {
      const mark = this.#marks.get(handle.name) ?? this.#newMark(handle);
      mark.handle = handle;
      marks.set(handle.name, mark);
      this.#updateMark(mark, answer, colour);
    }
    if (!this.isDragging) this.#setMarks(marks);
  }

  #setMarks(/** @type {Map<string, Mark>} */ marks) {
    const nodes = [...marks.values()].map(({ node }) => node);
    const { children } = this.#handles;
    const isSame = nodes.length === children.length && nodes.every((node, index) => node === children[index]);
    if (!isSame) this.#handles.replaceChildren(...nodes);
    this.#marks = marks;
  }

  /** @param {Mark} mark @param {Description} answer @param {number} colour */
  #updateMark({ node, handle }, answer, colour) {
    const isShared = answer.handles.some((other) => shareKnob(handle, other));
    const isDragged = handle.name === this.#dragged;
    const [x, y] = this.#placeOf(handle, answer.peak);
    setProperties(node, {
      class: `handle colour-${colour} ${isShared ? "both" : ""} ${isDragged ? "dragged" : ""}`,
      transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`,
      "aria-valuenow": handle.value,
      "aria-valuemin": handle.low,
      "aria-valuemax": handle.high,
      "aria-valuetext": textOf(handle),
    });
    // The value stays inside the picture, which a dragged handle may leave.
    const box = this.#svg.getBoundingClientRect();
    const value = /** @type {SVGTextElement} */ (node.lastChild);
    const valueX = clamp(x, 76, box.width - 76);
    const valueY = clamp(y < 48 ? y + 34 : y - 24, 20, box.height - 8);
    setProperties(value, { x: valueX - x, y: valueY - y });
    value.textContent = textOf(handle);
  }

  /** @param {Handle} handle @param {number} peak */
  #placeOf(handle, peak) {
    if (handle.axis === "learning_rate") return [this.#axes.left, this.#axes.y(handle.value)];
    return [this.#axes.x(handle.step), this.#axes.y(peak * handle.level)];
  }

  #newMark(/** @type {Handle} */ handle) {
    const properties = {
      role: "slider",
      tabindex: 0,
      "aria-label": handle.name,
      "aria-orientation": handle.axis === "step" ? "horizontal" : "vertical",
      "data-key": `handle/${handle.name}`,
      "data-look": lookOf(handle),
      "data-axis": handle.axis,
    };
    const node = svgElement("g", properties,
      svgElement("title", {}, handle.name),
      svgElement("circle", { class: "reach", r: 16 }),
      svgElement("circle", { class: "ring", r: 13 }),
      shapeOf(lookOf(handle)),
      svgElement("text", { class: "value", "text-anchor": "middle" }));
    /** @type {Mark} */ const mark = { node, handle, begin: () => {} };
    const overlapping = () => {
      const handles = [...this.#marks.values()].map((other) => other.handle);
      return handles.filter((other) => shareKnob(mark.handle, other));
    };
    makeDraggable(mark, this, overlapping, this.#listeners);
    return mark;
  }

  // The mark nearest to the pointer. Between close handles, the browser would choose the one on top.
  #nearestMark(/** @type {MouseEvent} */ event) {
    const distance = (/** @type {Mark} */ { node }) => {
      const box = /** @type {Element} */ (node.querySelector(".mark")).getBoundingClientRect();
      const x = (box.left + box.right) / 2;
      const y = (box.top + box.bottom) / 2;
      return Math.hypot(event.clientX - x, event.clientY - y);
    };
    const marks = [...this.#marks.values()];
    return marks.reduce((nearest, mark) => (distance(mark) < distance(nearest) ? mark : nearest));
  }

  // The cursor, at the step whose learning rates are read

  #readAt(/** @type {MouseEvent} */ event) {
    if (this.isDragging || !this.#curves.length) return;
    const fromLeft = event.clientX - this.#svg.getBoundingClientRect().left - this.#axes.left;
    this.#moveReader(this.distance("step", fromLeft));
  }

  #readByKey(/** @type {KeyboardEvent} */ event) {
    const count = KEY_INCREMENTS[event.key];
    if (count === undefined || !this.#curves.length) return;
    event.preventDefault();
    const change = event.shiftKey ? Math.sign(count) : count * Math.max(1, Math.round(this.total / 100));
    this.#moveReader((this.step ?? 0) + change);
  }

  #moveReader(/** @type {number} */ step) {
    this.step = Math.round(clamp(step, 0, this.total));
    this.#drawReader();
    this.#listeners.read();
  }

  #drawReader() {
    const { top, bottom } = this.#axes;
    const x = this.#axes.x(this.step ?? 0);
    const visibility = this.step === null ? "hidden" : "visible";
    setProperties(this.#cursor, { x1: x, x2: x, y1: top, y2: bottom, visibility });
    setProperties(this.#reader, {
      transform: `translate(${x.toFixed(1)} ${bottom + 11})`,
      "aria-valuemin": 0,
      "aria-valuemax": this.total,
      "aria-valuenow": this.step ?? 0,
    });
  }

  // Set what a screen reader announces for the reading slider.
  announce(/** @type {string} */ text) {
    setProperties(this.#reader, { "aria-valuetext": text });
  }
}

function shapeOf(/** @type {string} */ look) {
  switch (look) {
    case "bar": return svgElement("rect", { class: "mark", x: -14, y: -5, width: 28, height: 10, rx: 5 });
    case "tag": return svgElement("path", { class: "mark", d: "M-9 -8 H1 L9 0 L1 8 H-9 Z" });
    default: return svgElement("circle", { class: "mark", r: 6.5 });
  }
}

// True if two handles, one for the step and one for the level, lie at one point: their knob is
// dragged both ways.
/** @param {Handle} handle @param {Handle} other */
function shareKnob(handle, other) {
  const areKnobs = lookOf(handle) === "knob" && lookOf(other) === "knob";
  if (!areKnobs || handle.axis === other.axis) return false;
  return handle.step === other.step && Math.abs(handle.level - other.level) < 1e-6;
}

/** @param {number} value @param {number} low @param {number} high */
const clamp = (value, low, high) => Math.max(low, Math.min(value, high));
