// The selected curve in detail: the code to copy, in the chosen format, and the table of segments.

import { byId, element, formatLearningRate, formatStep } from "./elements.js";

let shown;  // the server's description of a curve

export function showCode(answer = shown) {
  shown = answer;
  const format = document.querySelector("[name=format]:checked").value;
  const text = answer?.[format] ?? "";
  if (byId("code").textContent !== text) byId("code").textContent = text;
}

byId("formats").addEventListener("change", () => showCode());
byId("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(byId("code").textContent);
    byId("copied").textContent = "Copied";
  } catch {  // the browser may refuse access to the clipboard
    getSelection().selectAllChildren(byId("code"));
    byId("copied").textContent = "Selected: press Ctrl+C";
  }
  setTimeout(() => (byId("copied").textContent = ""), 2500);
});

// The columns of segments: two steps, a shape, and learning rates.
const SHAPE_COLUMN = 2;
const numberClass = (column) => (column === SHAPE_COLUMN ? null : "number");

export function showSegments(answer) {
  const [heads, ...rows] = answer?.segments ?? [[]];
  const table = byId("segments");
  const headCells = heads.map((text, column) =>
    element("th", { scope: "col", class: numberClass(column) }, text));
  table.tHead.replaceChildren(element("tr", {}, ...headCells));
  table.tBodies[0].replaceChildren(...rows.map((row) => element("tr", {}, ...row.map(segmentCell))));
}

function segmentCell(text, column) {
  if (column < SHAPE_COLUMN) return element("td", { class: "number" }, formatStep(text));
  if (column === SHAPE_COLUMN) return element("td", {}, text);
  // Six digits of the learning rates would not fit next to the fields; the tooltip has them.
  return element("td", { class: "number", title: text }, formatLearningRate(Number(text)));
}
