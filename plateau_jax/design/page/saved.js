// The state that survives a reload of this tab.

const keyOf = (part) => `plateau_jax.design.${part}`;

export function loadState(part) {
  try {
    return JSON.parse(sessionStorage.getItem(keyOf(part)));
  } catch {
    return null;
  }
}

// Save what getState() returns when the tab is left: also when it is hidden, because a hidden tab may be discarded. If
// the storage is blocked, or too small for long curves and logs, the browser asks the user before it reloads the tab.
export function keepState(part, getState) {
  const save = (event) => {
    try {
      sessionStorage.setItem(keyOf(part), JSON.stringify(getState()));
    } catch {
      event.preventDefault();
    }
  };
  addEventListener("beforeunload", save);
  document.addEventListener("visibilitychange", save);
}
