// HTML and SVG elements, found or made in one call; texts and numbers formatted for the page; and
// the focus.

// The element with an id and of a class.
/** @template {typeof Element} [C=typeof HTMLElement] @param {string} id @param {C} [elementClass] */
export function byId(id, elementClass) {
  const node = document.getElementById(id);
  if (!(node instanceof (elementClass ?? HTMLElement))) throw new Error(`#${id} is missing`);
  return /** @type {InstanceType<C>} */ (node);
}

/** @template {keyof HTMLElementTagNameMap} K @param {K} tag @param {Properties} properties @param {Child[]} children */
export function element(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** @template {keyof SVGElementTagNameMap} K @param {K} tag @param {Properties} properties @param {Child[]} children */
export function svgElement(tag, properties = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

// Set attributes and, for functions, event listeners. False, null and undefined remove an attribute.
/** @template {Element} T @param {T} node @param {Properties} properties */
export function setProperties(node, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") node.addEventListener(name, /** @type {EventListener} */ (value));
    else if (value === false || value === null || value === undefined) node.removeAttribute(name);
    else {
      const text = value === true ? "" : String(value);
      if (node.getAttribute(name) !== text) node.setAttribute(name, text);
    }
  }
  return node;
}

/** @template {Element} T @param {T} node @param {Properties} properties @param {Child[]} children */
function fill(node, properties, children) {
  setProperties(node, properties);
  node.append(...children.filter((child) => child !== null));
  return node;
}

// 12345 with a narrow no-break space before each group of three digits.
/** @param {number | string} step */
export const formatStep = (step) => String(step).replace(/\B(?=(\d{3})+$)/g, "\u202f");

export function formatLearningRate(/** @type {number} */ lr) {
  const size = Math.abs(lr);
  if (size === 0 || (size >= 1e-3 && size < 1e5)) return String(Number(lr.toPrecision(4)));
  const [digits, power] = lr.toExponential(3).split("e");
  return `${Number(digits)}e${Number(power)}`;
}

// The focus, when controls are drawn anew, disabled or removed: it never falls to the body.

const CONTROLS = "button, input, select, textarea, [role=slider], [tabindex]";

// Draw, and keep the focus on the same control. If that is gone or disabled, the focus moves to its
// neighbour in the same part of the page: to a control of the same kind, such as the next row's
// Remove, or else to the nearest one.
export function keepFocus(/** @type {() => void} */ draw) {
  const focused = /** @type {Control} */ (document.activeElement);
  const region = focused.closest("section, header");
  if (!region) return draw();
  const keysBefore = controlsIn(region).map(keyOf);
  draw();
  if (canTakeFocus(focused)) {
    if (focused !== document.activeElement) focused.focus({ preventScroll: true });
    return;
  }
  const key = keyOf(focused);
  const controls = controlsIn(region).filter(canTakeFocus);
  const after = new Map(controls.map((control) => [keyOf(control), control]));
  const candidates = byDistance(keysBefore, key).filter((candidate) => candidate && after.has(candidate));
  const next = candidates.find((candidate) => patternOf(candidate) === patternOf(key)) ?? candidates[0];
  after.get(next)?.focus({ preventScroll: next === key });
}

/** @param {Element} region */
const controlsIn = (region) => /** @type {Control[]} */ ([...region.querySelectorAll(CONTROLS)]);

// What a control is, also after it was drawn anew; empty for one that never is.
const keyOf = (/** @type {Control} */ { dataset, id }) => dataset.path ?? dataset.key ?? dataset.add ?? id;

// "curves/3/remove" and "curves/4/remove" have the same pattern.
const patternOf = (/** @type {string} */ key) => key.replace(/\d+/g, "#");

/** @param {Control} control */
const canTakeFocus = (control) => control.isConnected && !control.disabled && control.checkVisibility();

// The keys from one of them on, then those before it, from the last to the first.
/** @param {string[]} keys @param {string} key */
function byDistance(keys, key) {
  const place = keys.indexOf(key);
  return [...keys.slice(place), ...keys.slice(0, place).reverse()];
}
