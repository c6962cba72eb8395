// Moving a handle with the pointer or with the keyboard.

import { addDecimals, isPlateau } from "./edits.js";
import { formatStep } from "./elements.js";

const AXIS_THRESHOLD = 4; // pixels

export function lookOf(handle) {
  if (handle.axis === "learning_rate") return "tag";
  return isPlateau(handle) ? "bar" : "knob";
}

export function textOf(handle) {
  if (handle.axis === "step") return `${isPlateau(handle) ? "from step" : "step"} ${formatStep(handle.value)}`;
  return `${Number(handle.value.toPrecision(6))}${handle.axis === "level" ? " of the peak" : ""}`;
}

// What dragging and the arrow keys round to, for small steps a tenth of it: about a hundredth of the run, a hundredth
// of the peak, or a tenth of a learning rate's first digit.
function unitOf({ axis, value }, totalSteps, isSmall) {
  if (axis === "step") return roundPart(totalSteps / (isSmall ? 1000 : 100));
  if (axis === "level") return 0.01;
  return 10 ** (Math.floor(Math.log10(value || 1e-3)) - (isSmall ? 2 : 1));
}

// 1, 2 or 5 times a power of ten: 200 for 300, and 1 for less.
function roundPart(part) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, part)));
  return [5, 2, 1].map((times) => times * power).find((size) => size <= Math.max(1, part));
}

// Make a mark {node, handle} draggable. Sets mark.begin, which starts a drag from a pointerdown event.
// `picture` converts pixels to steps and learning rates; `overlapping()` returns the other handles under the mark.
// `move({handle, value}, isLast)` receives each new value, and null at the end of a drag. `enqueue(action)` runs
// an action after all earlier changes have been drawn. picture.drag(handle) shows the handle's value.
export function makeDraggable(mark, picture, overlapping, { move, enqueue }) {
  let drag = null;
  let waitingKeys = 0;

  mark.begin = (event) => {
    event.preventDefault();
    mark.node.focus({ focusVisible: false, preventScroll: true });
    mark.node.setPointerCapture(event.pointerId);
    picture.drag(mark.handle);
    drag = { x: event.clientX, y: event.clientY, handles: [mark.handle, ...overlapping()], handle: null };
  };

  mark.node.addEventListener("pointermove", (event) => {
    if (drag === null) return;
    const [right, up] = [event.clientX - drag.x, drag.y - event.clientY];
    // The first few pixels choose between overlapping handles: raising a level must not also move its step.
    drag.handle ??= Math.max(Math.abs(right), Math.abs(up)) < AXIS_THRESHOLD && drag.handles.length > 1 ? null
      : drag.handles.find(({ axis }) => (axis === "step") === Math.abs(right) > Math.abs(up)) ?? drag.handles[0];
    if (drag.handle === null) return;
    picture.drag(drag.handle);
    const { axis, value, slope } = drag.handle;
    const unit = unitOf(drag.handle, picture.total, event.shiftKey);
    const change = picture.distance(axis, right, up) / (axis === "level" ? slope : 1);
    const isMoved = Math.abs(change) >= unit / 2;
    move({ handle: drag.handle, value: isMoved ? clamp(drag.handle, Math.round((value + change) / unit) * unit) : value }, false);
  });

  const end = () => {
    if (drag === null) return;
    drag = null;
    picture.drag(null);
    move(null, true);
  };
  mark.node.addEventListener("pointerup", end);
  mark.node.addEventListener("lostpointercapture", end);

  mark.node.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && drag !== null) {
      move({ handle: drag.handles[0], value: drag.handles[0].value }, false);  // back to the beginning
      return end();
    }
    const { key, shiftKey, repeat } = event;
    const valueAfterKey = () => afterKey(mark.handle, key, unitOf(mark.handle, picture.total, shiftKey && key.startsWith("Arrow")));
    if (valueAfterKey() === null) return;
    event.preventDefault();
    // Each key press moves the handle from where the previous one left it. Repeats of a held key are dropped
    // while one is waiting, or the handle would keep moving after the key is released.
    if (repeat && waitingKeys > 0) return;
    waitingKeys += 1;
    enqueue(() => {
      waitingKeys -= 1;
      if (mark.node.isConnected) move({ handle: mark.handle, value: valueAfterKey() }, true);
    });
  });
}

// The value after a key press; null for a key that moves nothing.
function afterKey(handle, key, unit) {
  if (key === "Home") return handle.low;
  if (key === "End") return handle.high;
  const units = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 }[key];
  if (units === undefined) return null;
  const multiple = handle.value / unit;
  return clamp(handle, ((units > 0 ? Math.floor(multiple + 1e-9) : Math.ceil(multiple - 1e-9)) + units) * unit);
}

const clamp = (handle, value) => addDecimals(Math.min(Math.max(value, handle.low), handle.high), 0);
