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

// The table of segments

const stepCell = (text) => element("td", { class: "number" }, formatStep(text));
const kindCell = (text) => element("td", {}, text);
// Six digits of the learning rates would not fit next to the fields; the tooltip has them.
const levelCell = (text) => element("td", { class: "number", title: text }, formatLearningRate(Number(text)));

// The columns of the server: the first and the last step, the kind, and the levels at both ends.
const CELLS = [stepCell, stepCell, kindCell, levelCell, levelCell];

export function showSegments(answer) {
  const { headings, rows } = answer?.segments ?? { headings: [], rows: [] };
  const headCells = headings.map((heading, index) =>
    element("th", { scope: "col", class: CELLS[index] === kindCell ? null : "number" }, heading));
  const rowOf = (cells) => element("tr", {}, ...cells.map((text, index) => CELLS[index](text)));
  const table = byId("segments");
  table.tHead.replaceChildren(element("tr", {}, ...headCells));
  table.tBodies[0].replaceChildren(...rows.map(rowOf));
}
