// What the server says about each curve: its fault, or a description of all that the page shows of
// it. An entry that has a fault keeps the description of when it was last valid.

import { ask } from "./requests.js";

// By the curve's id; `asked` is the entry that the server was asked about, as text.
/** @type {Map<number, { asked: string, fault?: Message, description?: Description }>} */
const answers = new Map();

/** @param {Pick<Entry, "curve" | "peak">} entry */
const textOf = ({ curve, peak }) => JSON.stringify({ curve, peak });

// Ask for the descriptions of entries.
export async function describe(/** @type {Pick<Entry, "id" | "curve" | "peak">[]} */ entries) {
  const asked = entries.map(({ curve, peak }) => ({ curve, peak }));
  const { curves } = await ask("/describe", { curves: asked });
  entries.forEach((entry, index) => {
    const { fault, ...description } = curves[index];
    answers.set(entry.id, {
      asked: textOf(entry),
      fault,
      description: fault ? descriptionOf(entry) : description,
    });
  });
}

// An id that no curve has had: one that comes back by undo finds its own description.
export const unusedId = () => Math.max(0, ...answers.keys()) + 1;

// True if the server has answered about the entry as it is.
export const isAnswered = (/** @type {Entry} */ entry) => answers.get(entry.id)?.asked === textOf(entry);

export const faultOf = (/** @type {{ id: number }} */ { id }) => answers.get(id)?.fault;

// The server's description of an entry as it is, or as it was last valid; undefined if there is none.
export const descriptionOf = (/** @type {{ id: number }} */ { id }) => answers.get(id)?.description;

// The curve and the peak that were last valid, or as they are without any.
export function validPart(/** @type {Entry} */ entry) {
  const { curve, peak } = descriptionOf(entry) ?? entry;
  return { curve, peak };
}

// The entry with its last valid curve and peak.
export const lastValid = (/** @type {Entry} */ entry) => ({ ...entry, ...validPart(entry) });
