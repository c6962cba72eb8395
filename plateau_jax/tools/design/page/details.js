// The selected curve in detail: the code to copy, in the chosen format, and the table of segments.

import { byId, element, formatLearningRate, formatStep } from "./elements.js";

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

// The table of segments

// The columns: the first and the last step, the kind, and the learning rates at both ends.
const KIND = 2;

/** @param {string} text @param {number} column */
function segmentCell(text, column) {
  if (column === KIND) return element("td", {}, text);
  if (column < KIND) return element("td", { class: "number" }, formatStep(text));
  // Six digits would not fit next to the fields; the tooltip has them.
  return element("td", { class: "number", title: text }, formatLearningRate(Number(text)));
}

/** @param {Description} [answer] */
export function showSegments(answer) {
  const [headings = [], ...rows] = answer?.segments ?? [];
  const headCells = headings.map((heading, column) =>
    element("th", { scope: "col", class: column === KIND ? null : "number" }, heading));
  const table = byId("segments", HTMLTableElement);
  table.tHead?.replaceChildren(element("tr", {}, ...headCells));
  table.tBodies[0].replaceChildren(...rows.map((cells) => element("tr", {}, ...cells.map(segmentCell))));
}
