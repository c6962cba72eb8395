// Moving a handle with the pointer or with the keyboard.

import { addDecimals, isPlateau } from "./edits.js";
import { formatStep } from "./elements.js";

/** @import { Picture } from "./picture.js" */

const AXIS_THRESHOLD = 4;  // pixels

export function lookOf(/** @type {Handle} */ handle) {
  if (handle.axis === "learning_rate") return "tag";
  return isPlateau(handle) ? "bar" : "knob";
}

export function textOf(/** @type {Handle} */ handle) {
  if (handle.axis === "step") {
    const prefix = isPlateau(handle) ? "from step" : "step";
    return `${prefix} ${formatStep(handle.value)}`;
  }
  const value = Number(handle.value.toPrecision(6));
  return handle.axis === "level" ? `${value} of the peak` : String(value);
}

// What dragging and the arrow keys round to, for small steps a tenth of it: about a hundredth of
// the run, a hundredth of the peak, or a tenth of a learning rate's first digit.
/** @param {Handle} handle @param {number} totalSteps @param {boolean} isSmall */
function incrementOf({ axis, value }, totalSteps, isSmall) {
  if (axis === "step") return roundPart(totalSteps / (isSmall ? 1000 : 100));
  if (axis === "level") return 0.01;
  return 10 ** (Math.floor(Math.log10(value || 1e-3)) - (isSmall ? 2 : 1));
}

// 1, 2 or 5 times a power of ten: 200 for 300, and 1 for less.
function roundPart(/** @type {number} */ part) {
  const atLeastOne = Math.max(1, part);
  const power = 10 ** Math.floor(Math.log10(atLeastOne));
  return [5, 2, 1].map((times) => times * power).find((size) => size <= atLeastOne) ?? power;
}

// Make a mark draggable. `picture` converts pixels to steps and learning rates, and picture.drag(handle)
// shows the handle's value; `overlapping()` returns the other handles under the mark.
/** @param {Mark} mark @param {Picture} picture @param {() => Handle[]} overlapping @param {DragListeners} listeners */
export function makeDraggable(mark, picture, overlapping, { move, endDrag, enqueue }) {
  /** @type {{ x: number, y: number, handles: Handle[], handle: Handle | null } | null} */
  let drag = null;
  let waitingKeys = 0;

  /** @param {PointerEvent} event */
  mark.begin = (event) => {
    event.preventDefault();
    mark.node.focus({ focusVisible: false, preventScroll: true });
    mark.node.setPointerCapture(event.pointerId);
    picture.drag(mark.handle);
    drag = {
      x: event.clientX,
      y: event.clientY,
      handles: [mark.handle, ...overlapping()],
      handle: null,  // the one that moves, once that is clear
    };
  };

  mark.node.addEventListener("pointermove", (event) => {
    if (drag === null) return;
    const right = event.clientX - drag.x;
    const up = drag.y - event.clientY;
    drag.handle ??= handleAlong(drag.handles, right, up);
    if (drag.handle === null) return;
    picture.drag(drag.handle);
    const value = afterDrag(drag.handle, picture, right, up, event.shiftKey);
    move({ handle: drag.handle, value });
  });

  const end = () => {
    if (drag === null) return;
    drag = null;
    picture.drag(null);
    endDrag();
  };
  mark.node.addEventListener("pointerup", end);
  mark.node.addEventListener("lostpointercapture", end);

  mark.node.addEventListener("keydown", (event) => {
    const { key, shiftKey, repeat } = event;
    if (key === "Escape" && drag !== null) {
      const [handle] = drag.handles;
      move({ handle, value: handle.value });  // back to the beginning
      return end();
    }
    if (afterKey(mark.handle, key, shiftKey, picture.total) === null) return;
    event.preventDefault();
    // Each key press moves the handle from where the previous one left it. Repeats of a held key
    // are dropped while one is waiting, or the handle would keep moving after the key is released.
    if (repeat && waitingKeys > 0) return;
    waitingKeys += 1;
    enqueue(() => {
      waitingKeys -= 1;
      const value = afterKey(mark.handle, key, shiftKey, picture.total);
      if (mark.node.isConnected && value !== null) move({ handle: mark.handle, value });
    });
  });
}

// The one of the handles under the pointer that moves along the axis of a drag; null if it is not
// clear yet. The first few pixels choose between overlapping handles: raising a level must not also
// move its step.
/** @param {Handle[]} handles @param {number} right @param {number} up */
function handleAlong(handles, right, up) {
  const isShort = Math.max(Math.abs(right), Math.abs(up)) < AXIS_THRESHOLD;
  if (isShort && handles.length > 1) return null;
  const isHorizontal = Math.abs(right) > Math.abs(up);
  return handles.find(({ axis }) => (axis === "step") === isHorizontal) ?? handles[0];
}

// The value after a drag over pixels to the right and upwards.
/** @param {Handle} handle @param {Picture} picture @param {number} right @param {number} up @param {boolean} isSmall */
function afterDrag(handle, picture, right, up, isSmall) {
  const increment = incrementOf(handle, picture.total, isSmall);
  const change = picture.distance(handle.axis, right, up);
  const isMoved = Math.abs(change) >= increment / 2;
  if (!isMoved) return handle.value;
  return clamp(handle, Math.round((handle.value + change) / increment) * increment);
}

/** @type {Record<string, number | undefined>} */
export const KEY_INCREMENTS = {
  ArrowRight: 1, ArrowUp: 1, PageUp: 10, End: Infinity,
  ArrowLeft: -1, ArrowDown: -1, PageDown: -10, Home: -Infinity,
};

// The value after a key press; null for a key that moves nothing.
/** @param {Handle} handle @param {string} key @param {boolean} isShift @param {number} totalSteps */
function afterKey(handle, key, isShift, totalSteps) {
  const count = KEY_INCREMENTS[key];
  if (count === undefined) return null;
  const increment = incrementOf(handle, totalSteps, isShift && key.startsWith("Arrow"));
  const multiple = handle.value / increment;
  // From between two multiples, the first one on the way: from 3.4 increments, up to 4 and down to 3.
  const origin = count > 0 ? Math.floor(multiple + 1e-9) : Math.ceil(multiple - 1e-9);
  return clamp(handle, (origin + count) * increment);
}

/** @param {Handle} handle @param {number} value */
const clamp = (handle, value) => addDecimals(Math.min(Math.max(value, handle.low), handle.high), 0);
