// Moving a handle with the pointer or with the keyboard.

import { isOfPlateau, isPlateau } from "./handle_values.js";
import { valueAt, withValue } from "./history.js";
import { roundPercentage, stepsOfPercentage } from "./percentages.js";

const AXIS_THRESHOLD = 4; // pixels

// Make a mark {node, handle} draggable. Sets mark.begin, which starts a drag from a pointerdown event.
// `picture` converts pixels to steps and learning rates; `overlapping()` returns the other handles under the mark.
// `move({handle, value}, isLast)` receives each new value, and null at the end of a drag. `enqueue(action)` runs
// an action after all earlier changes have been drawn. The picture shows the value meanwhile.
export function makeDraggable(mark, picture, overlapping, { move, enqueue }) {
  let drag = null;
  let waitingKeys = 0;

  mark.begin = (event) => {
    event.preventDefault();
    mark.node.focus({ focusVisible: false, preventScroll: true });
    mark.node.setPointerCapture(event.pointerId);
    picture.isDragging = true;
    picture.showValue(mark.handle);
    drag = { x: event.clientX, y: event.clientY, handles: [mark.handle, ...overlapping()], handle: null };
  };

  mark.node.addEventListener("pointermove", (event) => {
    if (drag === null) return;
    const [right, up] = [event.clientX - drag.x, drag.y - event.clientY];
    // The first few pixels choose between overlapping handles: raising a level must not also move its step.
    drag.handle ??= Math.max(Math.abs(right), Math.abs(up)) < AXIS_THRESHOLD && drag.handles.length > 1 ? null
      : drag.handles.find(({ axis }) => (axis === "step") === Math.abs(right) > Math.abs(up)) ?? drag.handles[0];
    if (drag.handle === null) return;
    picture.showValue(drag.handle);
    const unit = event.shiftKey ? drag.handle.smallUnit : drag.handle.unit;
    const value = valueAfterDrag(drag.handle, right * picture.stepsPerPixel, up * picture.learningRatePerPixel, picture.peak, unit);
    move({ handle: drag.handle, value }, false);
  });

  const end = () => {
    if (drag === null) return;
    drag = null;
    picture.isDragging = false;
    picture.showValue(null);
    move(null, true);
  };
  mark.node.addEventListener("pointerup", end);
  mark.node.addEventListener("lostpointercapture", end);

  mark.node.addEventListener("focus", () => mark.node.matches(":focus-visible") && picture.showValue(mark.handle));
  mark.node.addEventListener("blur", () => picture.showValue(null));
  mark.node.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && drag !== null) {
      move({ handle: drag.handles[0], value: drag.handles[0].value }, false);  // back to the beginning
      return end();
    }
    if (valueAfterKey(mark.handle, event) === null) return;
    event.preventDefault();
    picture.showValue(mark.handle);
    const { key, shiftKey, repeat } = event;
    // Each key press moves the handle from where the previous one left it. Repeats of a held key are dropped
    // while one is waiting, or the handle would keep moving after the key is released.
    if (repeat && waitingKeys > 0) return;
    waitingKeys += 1;
    enqueue(() => {
      waitingKeys -= 1;
      if (mark.node.isConnected) move({ handle: mark.handle, value: valueAfterKey(mark.handle, { key, shiftKey }) }, true);
    });
  });
}

function valueAfterDrag(handle, steps, learningRate, peak, unit) {
  const distance = { step: steps, learning_rate: learningRate, level: peak ? learningRate / peak : 0 }[handle.axis];
  const change = distance * handle.valuePerUnit;
  if (Math.abs(change) < unit / 2) return handle.value;
  return clamp(handle, Math.round((handle.value + change) / unit) * unit);
}

function valueAfterKey(handle, { key, shiftKey }) {
  if (key === "Home") return handle.low;
  if (key === "End") return handle.high;
  const units = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 10, PageDown: -10 }[key];
  if (units === undefined) return null;
  const unit = shiftKey && Math.abs(units) === 1 ? handle.smallUnit : handle.unit;
  const multiple = handle.value / unit;
  return clamp(handle, ((units > 0 ? Math.floor(multiple + 1e-9) : Math.ceil(multiple - 1e-9)) + units) * unit);
}

const clamp = (handle, value) => addDecimals(Math.min(Math.max(value, handle.low), handle.high), 0);

// The entry after a handle was moved by a distance.
export function movedEntry(entry, handle, distance) {
  const { path, value } = handle;
  if (isPlateau(handle)) return withMovedPlateau(entry, path, distance, 0);
  // The pair is (start, length): the start moves at the cost of the length, so that the end stays.
  if (isOfPlateau(handle)) return withMovedPlateau(entry, path.slice(0, -1), ...(path.at(-1) === 0 ? [distance, -distance] : [0, distance]));
  const before = valueAt(entry, path) ?? value;  // a stage that holds has no level of its own
  const next = withValue(entry, path, addDecimals(before, distance));
  return path.at(-3) === "stages" && path.at(-1) === 0 ? withShorterNextStage(next, path, distance) : next;
}

// A border takes from the next stage what it gives to this one. Empty stages have nothing to give.
function withShorterNextStage(entry, path, distance) {
  const stages = valueAt(entry, path.slice(0, -2));
  const next = stages.findIndex(([steps], index) => index > path.at(-2) && steps > 0);
  return next < 0 ? entry : withValue(entry, [...path.slice(0, -2), next, 0], stages[next][0] - distance);
}

// A plateau in percent becomes one in steps, unless round percentages say the same.
function withMovedPlateau(entry, path, startDistance, lengthDistance) {
  const [list, index] = path.slice(-2), curvePath = path.slice(0, -2), curve = valueAt(entry, curvePath);
  const before = curve[list][index], distances = [startDistance, lengthDistance];
  if (list === "absolute_plateaus") return withValue(entry, path, before.map((steps, item) => steps + distances[item]));
  const afterWarmup = curve.total_steps - curve.warmup_steps;
  const inSteps = before.map((percentage, item) => stepsOfPercentage(percentage, afterWarmup) + distances[item]);
  const inPercent = before.map((percentage, item) => (distances[item] ? roundPercentage(inSteps[item], afterWarmup) : percentage));
  if (!inPercent.includes(null)) return withValue(entry, path, inPercent);
  const [start, length] = inSteps;
  return withValue(entry, curvePath, {
    ...curve,
    plateaus: curve.plateaus.toSpliced(index, 1),
    absolute_plateaus: [...curve.absolute_plateaus, [curve.warmup_steps + start, length]],
  });
}

// The sum to 12 digits, which removes binary rounding: 12.3 rather than 12.299999999999999.
function addDecimals(augend, addend) {
  const sum = Number((augend + addend).toPrecision(12));
  return Math.abs(sum) < 1e-12 * Math.abs(augend) ? 0 : sum;
}
