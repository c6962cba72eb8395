// The selected curve in detail: the code to copy, in the chosen format, and the table of segments.

import { byId } from "./elements.js";

/** @type {Description | undefined} */ let shown;  // the server's description of a curve

export function showCode(answer = shown) {
  shown = answer;
  const format = /** @type {HTMLInputElement} */ (byId("formats").querySelector(":checked"));
  const text = answer?.[/** @type {"optax" | "torch" | "json"} */ (format.value)] ?? "";
  if (byId("code").textContent !== text) byId("code").textContent = text;
}

byId("formats").addEventListener("change", () => showCode());
byId("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(byId("code").textContent);
    byId("copied").textContent = "Copied";
  } catch {  // the browser may refuse access to the clipboard
    getSelection()?.selectAllChildren(byId("code"));
    byId("copied").textContent = "Selected: press Ctrl+C";
  }
  setTimeout(() => (byId("copied").textContent = ""), 2500);
});

export function showSegments(/** @type {Description | undefined} */ answer) {
  byId("segments").textContent = answer?.segments ?? "";
}
