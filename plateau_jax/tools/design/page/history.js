// The state that the user edits: undo and redo, what survives a reload of the tab, and the parts at
// a path.

const MAX_SAVED = 100;  // states before the present one, and after it

export class History {
  #past;
  #future;
  /** @type {string | null} */ #key = null;

  // `past` and `future` are those that an earlier history saved.
  /** @param {{ present: State, past?: State[], future?: State[] }} saved */
  constructor({ present, past = [], future = [] }) {
    this.present = present;
    this.#past = past;
    this.#future = future;
  }

  get saved() {
    return {
      past: this.#past.slice(-MAX_SAVED),
      present: this.present,
      future: this.#future.slice(-MAX_SAVED),
    };
  }

  // Successive changes with the same key, such as those of one drag, form one undo step. Null never
  // merges.
  /** @param {string | null} key @param {State} next */
  change(key, next) {
    if (JSON.stringify(next) === JSON.stringify(this.present)) return;
    if (key === null || key !== this.#key) this.#past.push(this.present);
    this.#future = [];
    this.#key = key;
    this.present = next;
  }

  // Change the state without an undo step.
  replace(/** @type {State} */ next) {
    this.present = next;
    this.#key = null;
  }

  // Let the next change begin a new undo step, whatever its key.
  endStep() {
    this.#key = null;
  }

  undo() {
    this.#travel(this.#past, this.#future);
  }

  redo() {
    this.#travel(this.#future, this.#past);
  }

  get canUndo() {
    return this.#past.length > 0;
  }

  get canRedo() {
    return this.#future.length > 0;
  }

  /** @param {State[]} from @param {State[]} to */
  #travel(from, to) {
    const next = from.pop();
    if (next === undefined) return;
    to.push(this.present);
    this.present = next;
    this.#key = null;
  }
}

// The value at a path of keys; undefined if there is none.
/** @param {any} value @param {Path} path */
export const valueAt = (value, path) => path.reduce((inner, key) => inner?.[key], value);

// A copy of the value with the part at the path replaced.
/** @template T @param {T} value @param {Path} path @param {any} replacement @returns {T} */
export function withValue(value, path, replacement) {
  const key = path.at(-1);
  if (key === undefined) return replacement;
  const copy = structuredClone(value);
  valueAt(copy, path.slice(0, -1))[key] = replacement;
  return copy;
}

const STORAGE_KEY = "plateau_jax.tools.design";

// The state that was kept before the tab was reloaded; null without one.
export function loadState() {
  try {
    return JSON.parse(sessionStorage.getItem(STORAGE_KEY) ?? "null");
  } catch {
    return null;
  }
}

// Save what getState() returns when the tab is left: also when it is hidden, because a hidden tab
// may be discarded. If the storage is blocked, or too small for long curves, the browser asks the
// user before it reloads the tab.
export function keepState(/** @type {() => object} */ getState) {
  const save = (/** @type {Event} */ event) => {
    try {
      sessionStorage.setItem(STORAGE_KEY, JSON.stringify(getState()));
    } catch {
      event.preventDefault();
    }
  };
  addEventListener("beforeunload", save);
  document.addEventListener("visibilitychange", save);
}
