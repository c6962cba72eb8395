// The value at a handle, on the picture.

import { setProperties, svgElement } from "./elements.js";

const HEIGHT = 24, PADDING = 8;
const DISTANCE = 20;  // from the middle of the handle

export class ValueLabel {
  #box = svgElement("rect", { height: HEIGHT, rx: 6 });
  #text = svgElement("text", { x: PADDING, y: HEIGHT - 8 });
  node = svgElement("g", { class: "value", "aria-hidden": "true", visibility: "hidden" }, this.#box, this.#text);

  // mark: {handle, place: its [x, y]}, or undefined to hide the label, which stays inside the picture. A handle that is
  // dragged may leave it.
  draw(mark, { width, height }) {
    setProperties(this.node, { visibility: mark ? "visible" : "hidden" });
    if (!mark) return;
    const [x, y] = mark.place;
    if (this.#text.textContent !== mark.handle.text) this.#text.textContent = mark.handle.text;
    const own = this.#text.getComputedTextLength() + 2 * PADDING;
    const above = y - DISTANCE - HEIGHT;
    const left = clamp(x - own / 2, width - own);
    const top = clamp(above < 1 ? y + DISTANCE : above, height - HEIGHT);
    setProperties(this.#box, { width: own });
    setProperties(this.node, { transform: `translate(${left.toFixed(1)} ${top.toFixed(1)})` });
  }
}

const clamp = (value, end) => Math.max(1, Math.min(value, end - 1));
