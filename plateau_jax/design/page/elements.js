// Elements of the page, made in one call each.

export function element(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

export function drawn(tag, properties = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

// Functions are listeners; all else are attributes. False and null leave an attribute out.
export function set(found, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === "function") found.addEventListener(name, value);
    else if (value === false || value === null || value === undefined) found.removeAttribute(name);
    else if (found.getAttribute(name) !== String(value)) found.setAttribute(name, value === true ? "" : value);
  }
  return found;
}

function filled(found, properties, children) {
  set(found, properties).append(...children.filter((child) => child !== null));
  return found;
}

export const ofSteps = (step) => String(step).replace(/\B(?=(\d{3})+$)/g, "\u202f");

export function ofRates(rate) {
  if (rate === 0 || (Math.abs(rate) >= 1e-3 && Math.abs(rate) < 1e5)) return String(Number(rate.toPrecision(4)));
  const [digits, power] = rate.toExponential(3).split("e");
  return `${Number(digits)}e${Number(power)}`;
}
