// The messages about a curve: the fault of an invalid one, next to its field, or advice about a valid
// one.

import { element, setProperties } from "./elements.js";

export class Messages {
  /** @type {Map<string, HTMLElement>} */ #slots = new Map();  // the places for messages, by path
  isWaiting = false;  // a message, for the end of the typing

  clear() {
    this.#slots.clear();
  }

  // A new place for messages about what is at the path.
  slot(/** @type {Path} */ path) {
    const key = path.join("/");
    const id = `fault-${key.replaceAll("/", "-")}`;
    const slot = element("p", { class: "fault", id, role: "alert" });
    this.#slots.set(key, slot);
    return slot;
  }

  // The fault of a number that is being typed waits until the field is left, or the number is one.
  // Advice stands below the curve's fields.
  /** @param {Message | undefined} fault @param {string[]} advice @param {Field[]} inputs */
  show(fault, advice, inputs) {
    const place = fault ? this.#placeOf(fault) : null;
    this.isWaiting = place !== null && inputs.some((field) => isTypedAt(place, field));
    const faultPlace = this.isWaiting ? null : place;
    for (const [key, slot] of this.#slots) {
      if (slot === faultPlace?.slot) write(slot, "fault", "alert", faultPlace.message);
      else if (key === "curve" && !fault && advice.length) write(slot, "advice", "status", advice.join(". "));
      else write(slot, "fault", "alert", "");
    }
    for (const field of inputs) describeInput(field, faultPlace);
  }

  // The slot next to the field that a message is about, or else the nearest one around it: of the
  // list's item, of the field, of the curve, of the curves derived from it.
  /** @param {Message} message @returns {Place} */
  #placeOf({ message, path }) {
    for (let length = path.length; length > 0; length -= 1) {
      const slot = this.#slots.get(path.slice(0, length).join("/"));
      if (slot) {
        const isField = !["curve", "other"].includes(String(path[length - 1]));
        return { message, key: path.join("/"), slot, isField };
      }
    }
    return this.#placeOf({ message, path: ["curve"] });
  }
}

/** @param {HTMLElement} slot @param {string} look @param {string} role @param {string} text */
function write(slot, look, role, text) {
  setProperties(slot, { class: look, role });
  // Screen readers would announce an unchanged message again if it were set.
  if (slot.textContent !== text) slot.textContent = text;
}

// Tell screen readers which fault is about a field.
/** @param {Field} field @param {Place | null} faultPlace */
function describeInput({ input, path }, faultPlace) {
  const isInvalid = faultPlace !== null && covers(faultPlace, path);
  setProperties(input, {
    "aria-invalid": isInvalid ? "true" : null,
    "aria-describedby": isInvalid ? faultPlace.slot.id : null,
  });
}

// True while a number is typed into a field at fault.
/** @param {Place} faultPlace @param {Field} field */
function isTypedAt(faultPlace, { input, path }) {
  return input === document.activeElement && isIncomplete(input.value) && covers(faultPlace, path);
}

// True if a message is about the field at the path.
/** @param {Place} place @param {Path} path */
const covers = ({ key, isField }, path) => isField && `${path.join("/")}/`.startsWith(`${key}/`);

// True for the beginning of a number that is not one yet, such as "" and "6e-" on the way to "6e-4".
function isIncomplete(/** @type {string} */ text) {
  const begins = /^[-+]?\d*\.?\d*(e[-+]?)?$/i.test(text.trim());
  return begins && Number.isNaN(Number(text || "."));
}
