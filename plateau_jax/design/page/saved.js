// The state that survives a reload of this tab. Storage may be blocked, or too small for long curves.

const KEY = "plateau_jax.design";
let isUnsaved = false;

addEventListener("beforeunload", (event) => isUnsaved && event.preventDefault());  // the browser asks the user

export function loadState() {
  try {
    return JSON.parse(sessionStorage.getItem(KEY));
  } catch {
    return null;
  }
}

export function saveState(state) {
  try {
    sessionStorage.setItem(KEY, JSON.stringify(state));
    isUnsaved = false;
  } catch {
    isUnsaved = true;
  }
}
