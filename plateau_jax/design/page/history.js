// What the user has described: the curves, and which of them is being edited. With undo and redo.

export class History {
  #past = [];
  #future = [];
  #key = null;

  constructor(present) {
    this.present = present;
  }

  // Changes in a row with one key, such as those of one drag, are one step.
  change(key, next) {
    if (JSON.stringify(next) === JSON.stringify(this.present)) return;
    if (key === null || key !== this.#key) this.#past.push(this.present);
    this.#future = [];
    this.#key = key;
    this.present = next;
  }

  // A change that is no step of its own.
  replace(next) {
    this.present = next;
    this.#key = null;
  }

  // What comes next is a step of its own.
  pause() {
    this.#key = null;
  }

  undo() {
    this.#move(this.#past, this.#future);
  }

  redo() {
    this.#move(this.#future, this.#past);
  }

  get canUndo() {
    return this.#past.length > 0;
  }

  get canRedo() {
    return this.#future.length > 0;
  }

  #move(from, to) {
    if (!from.length) return;
    to.push(this.present);
    this.present = from.pop();
    this.#key = null;
  }
}

export const at = (value, path) => path.reduce((found, name) => found?.[name], value);

// A copy of the value, with another one at the path.
export function withValue(value, path, replacement) {
  const copy = structuredClone(value);
  if (!path.length) return replacement;
  at(copy, path.slice(0, -1))[path.at(-1)] = replacement;
  return copy;
}
