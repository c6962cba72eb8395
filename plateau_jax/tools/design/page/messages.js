// The messages about a curve, each next to its field: the fault of an invalid curve, or advice
// about a valid one.

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
  /** @param {Message | undefined} fault @param {Message[]} advice @param {Field[]} inputs */
  show(fault, advice, inputs) {
    const place = fault ? this.#placeOf(fault) : null;
    this.isWaiting = place !== null && inputs.some((field) => isTypedAt(place, field));
    const faultPlace = this.isWaiting ? null : place;
    const advicePlaces = fault ? [] : advice.map((message) => this.#placeOf(message));
    this.#fillSlots(faultPlace, advicePlaces);
    for (const field of inputs) describeInput(field, faultPlace, advicePlaces);
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

  /** @param {Place | null} faultPlace @param {Place[]} advicePlaces */
  #fillSlots(faultPlace, advicePlaces) {
    for (const slot of this.#slots.values()) {
      const isFault = slot === faultPlace?.slot;
      const places = isFault ? [faultPlace] : advicePlaces.filter((place) => place.slot === slot);
      const text = places.map(({ message }) => message).join(". ");
      const isAdvice = !isFault && text !== "";
      setProperties(slot, { class: isAdvice ? "advice" : "fault", role: isAdvice ? "status" : "alert" });
      // Screen readers would announce an unchanged message again if it were set.
      if (slot.textContent !== text) slot.textContent = text;
    }
  }
}

// Tell screen readers which message is about a field, and whether it is a fault.
/** @param {Field} field @param {Place | null} faultPlace @param {Place[]} advicePlaces */
function describeInput({ input, path }, faultPlace, advicePlaces) {
  const isInvalid = faultPlace !== null && covers(faultPlace, path);
  const place = isInvalid ? faultPlace : advicePlaces.find((candidate) => covers(candidate, path));
  setProperties(input, { "aria-invalid": isInvalid ? "true" : null, "aria-describedby": place?.slot.id });
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
