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

// The table of segments: the server names its columns, and says what their cells contain.

const CELLS = {
  text: (text) => element("td", {}, text),
  step: (text) => element("td", { class: "number" }, formatStep(text)),
  // Six digits of the learning rates would not fit next to the fields; the tooltip has them.
  level: (text) => element("td", { class: "number", title: text }, formatLearningRate(Number(text))),
};

export function showSegments(answer) {
  const { columns, rows } = answer?.segments ?? { columns: [], rows: [] };
  const headCells = columns.map(({ heading, content }) =>
    element("th", { scope: "col", class: content === "text" ? null : "number" }, heading));
  const rowOf = (cells) => columns.map(({ name, content }) => CELLS[content](cells[name]));
  const table = byId("segments");
  table.tHead.replaceChildren(element("tr", {}, ...headCells));
  table.tBodies[0].replaceChildren(...rows.map((cells) => element("tr", {}, ...rowOf(cells))));
}
