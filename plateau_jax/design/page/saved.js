// The state that survives a reload of this tab. Storage may be blocked, or too small for long curves.

const KEY = "plateau_jax.design";
const unsaved = new Set();  // parts

addEventListener("beforeunload", (event) => unsaved.size && event.preventDefault());  // the browser asks the user

const keyOf = (part) => [KEY, part].join(".");

export function loadState(part = "curves") {
  try {
    return JSON.parse(sessionStorage.getItem(keyOf(part)));
  } catch {
    return null;
  }
}

export function saveState(state, part = "curves") {
  try {
    sessionStorage.setItem(keyOf(part), JSON.stringify(state));
    unsaved.delete(part);
  } catch {
    unsaved.add(part);
  }
}
