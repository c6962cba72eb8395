// What this tab keeps while it is loaded again. A browser may keep nothing, or too little for long curves.

let isLost = false;

addEventListener("beforeunload", (event) => isLost && event.preventDefault());  // the browser asks

export function load() {
  try {
    return JSON.parse(sessionStorage.getItem("design"));
  } catch {
    return null;
  }
}

export function save(value) {
  try {
    sessionStorage.setItem("design", JSON.stringify(value));
    isLost = false;
  } catch {
    isLost = true;
  }
}
