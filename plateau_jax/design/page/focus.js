// The focus, when controls are drawn anew, disabled or removed: it never falls to the body.

const CONTROLS = "button, input, select, textarea, [role=slider], [tabindex]";

// What a control is, also after it was drawn anew; empty for one that never is, and for the button inside a list.
const keyOf = ({ dataset, id }) => dataset.path ?? dataset.key ?? dataset.add ?? id;
const canTakeFocus = (control) => control.isConnected && !control.disabled && control.checkVisibility();

// Draw, and keep the focus on the same control. If that is gone or disabled, the focus moves to its neighbour in the
// same part of the page: to a control of the same kind, such as the next row's Remove, or else to the nearest one.
export function keepFocus(draw) {
  const focused = document.activeElement;
  const region = focused?.closest("section, header");
  const before = region ? [...region.querySelectorAll(CONTROLS)].map(keyOf) : [];
  draw();
  if (!region || (focused === document.activeElement && canTakeFocus(focused))) return;
  if (focused.isConnected && canTakeFocus(focused)) return focused.focus({ preventScroll: true });
  const after = new Map([...region.querySelectorAll(CONTROLS)].filter(canTakeFocus).map((control) => [keyOf(control), control]));
  const place = before.indexOf(keyOf(focused));
  const nearest = [...before.slice(place), ...before.slice(0, place).reverse()].filter((key) => key && after.has(key));
  const key = nearest.find((other) => kindOf(other) === kindOf(keyOf(focused))) ?? nearest[0];
  after.get(key)?.focus({ preventScroll: key === keyOf(focused) });
}

// "curves/3/remove" and "curves/4/remove" are of one kind.
const kindOf = (key) => key.replace(/\d+/g, "#");
