// How a handle is moved: dragged, or by arrow keys.

const DECIDING = 4; // pixels

// Listen to a mark, {node, handle}. It gets a function `begin`, for the event that begins a drag. `picture`
// says what a pixel is worth, `partners()` which other handles lie under it, and `move({handle, value}, isLast)`
// takes what changes; null where nothing does. `inTurn(act)` acts once the changes before are on the picture.
export function dragging(mark, picture, partners, { move, inTurn }) {
  let start = null;
  let waiting = 0;

  mark.begin = (event) => {
    event.preventDefault();
    mark.node.focus({ focusVisible: false, preventScroll: true });
    mark.node.setPointerCapture(event.pointerId);
    picture.isHeld = true;
    start = { x: event.clientX, y: event.clientY, handles: [mark.handle, ...partners()], handle: null };
  };

  mark.node.addEventListener("pointermove", (event) => {
    if (start === null) return;
    const [right, up] = [event.clientX - start.x, start.y - event.clientY];
    // The direction of the first pixels decides: who raises a level does not want to move its step too.
    start.handle ??= Math.max(Math.abs(right), Math.abs(up)) < DECIDING && start.handles.length > 1 ? null
      : start.handles.find(({ axis }) => (axis === "step") === Math.abs(right) > Math.abs(up)) ?? start.handles[0];
    if (start.handle === null) return;
    const value = dragged(start.handle, right * picture.stepsAPixel, up * picture.ratesAPixel, picture.peak);
    move({ handle: start.handle, value }, false);
  });

  const end = () => {
    if (start === null) return;
    start = null;
    picture.isHeld = false;
    move(null, true);
  };
  mark.node.addEventListener("pointerup", end);
  mark.node.addEventListener("lostpointercapture", end);

  mark.node.addEventListener("keydown", (event) => {
    if (byKey(mark.handle, event) === null) return;
    event.preventDefault();
    const { key, shiftKey, repeat } = event;
    // Each key moves the handle from where the one before has put it. A key that is held makes no queue.
    if (repeat && waiting > 0) return;
    waiting += 1;
    inTurn(() => {
      waiting -= 1;
      if (mark.node.isConnected) move({ handle: mark.handle, value: byKey(mark.handle, { key, shiftKey }) }, true);
    });
  });
}

function dragged(handle, across, up, peak) {
  const moved = { step: across, rate: up, level: peak ? up / peak : 0 }[handle.axis] * handle.per;
  if (Math.abs(moved) < handle.drag / 2) return handle.value;
  return limited(handle, Math.round((handle.value + moved) / handle.drag) * handle.drag);
}

function byKey(handle, { key, shiftKey }) {
  if (key === "Home") return handle.low;
  if (key === "End") return handle.high;
  const small = shiftKey ? handle.drag : handle.arrow;
  const sizes = { ArrowRight: small, ArrowUp: small, ArrowLeft: -small, ArrowDown: -small,
    PageUp: handle.page, PageDown: -handle.page };
  return key in sizes ? limited(handle, handle.value + sizes[key]) : null;
}

const limited = (handle, value) => added(Math.min(Math.max(value, handle.low), handle.high), 0);

// The sum without the last digits of binary fractions: 12.3, not 12.299999999999999.
export function added(one, other) {
  const sum = Number((one + other).toPrecision(12));
  return Math.abs(sum) < 1e-12 * Math.abs(one) ? 0 : sum;
}
