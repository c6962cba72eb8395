// The selected curve in detail: the code to copy, in the chosen format, and the table of segments.

import { byId, element, formatLearningRate, formatStep } from "./elements.js";

/** @type {Description | undefined} */
let shown;  // the server's description of a curve

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

/** @param {string} text */
const stepCell = (text) => element("td", { class: "number" }, formatStep(text));
/** @param {string} text */
const kindCell = (text) => element("td", {}, text);
// Six digits of the learning rates would not fit next to the fields; the tooltip has them.
/** @param {string} text */
const levelCell = (text) => element("td", { class: "number", title: text }, formatLearningRate(Number(text)));

// The columns of the server: the first and the last step, the kind, and the levels at both ends.
const CELLS = [stepCell, stepCell, kindCell, levelCell, levelCell];

/** @param {Description} [answer] */
export function showSegments(answer) {
  const headings = answer?.segments.headings ?? [];
  const rows = answer?.segments.rows ?? [];
  const headCells = headings.map((heading, index) =>
    element("th", { scope: "col", class: CELLS[index] === kindCell ? null : "number" }, heading));
  const drawnRows = rows.map((cells) =>
    element("tr", {}, ...cells.map((text, index) => CELLS[index](text))));
  const table = byId("segments", HTMLTableElement);
  table.tHead?.replaceChildren(element("tr", {}, ...headCells));
  table.tBodies[0].replaceChildren(...drawnRows);
}
