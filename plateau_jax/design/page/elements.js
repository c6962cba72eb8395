// HTML and SVG elements, found or made in one call, and texts and numbers formatted for the page.

export const byId = (id) => document.getElementById(id);

export function element(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

export function svgElement(tag, properties = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

// Set attributes and, for functions, event listeners. False, null and undefined remove an attribute.
export function setProperties(node, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value === false || value === null || value === undefined) node.removeAttribute(name);
    else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value === true ? "" : value);
  }
  return node;
}

function fill(node, properties, children) {
  setProperties(node, properties).append(...children.filter((child) => child !== null));
  return node;
}

export const sentence = (text) => (/[.?!]$/.test(text) ? text : `${text}.`);

// 12345 with a narrow no-break space before each group of three digits.
export const formatStep = (step) => String(step).replace(/\B(?=(\d{3})+$)/g, "\u202f");

export function formatLearningRate(lr) {
  if (lr === 0 || (Math.abs(lr) >= 1e-3 && Math.abs(lr) < 1e5)) return String(Number(lr.toPrecision(4)));
  const [digits, power] = lr.toExponential(3).split("e");
  return `${Number(digits)}e${Number(power)}`;
}
