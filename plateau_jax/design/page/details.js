// The selected curve in detail: the code to copy, in the chosen format, and the table of segments.

import { byId, element, formatLearningRate, formatStep } from "./elements.js";

let shown;  // the server's description of a curve

export function showCode(answer = shown) {
  shown = answer;
  const text = answer?.[document.querySelector("[name=format]:checked").value] ?? "";
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

export function showSegments(answer) {
  const [heads, ...rows] = answer?.segments ?? [[]];
  // Six digits of the learning rates would not fit next to the fields; the tooltip has them.
  const shown = (text, column) => (column < 2 ? formatStep(text) : column > 2 ? formatLearningRate(Number(text)) : text);
  const cell = (text, column) => element("td", { class: column === 2 ? null : "number", title: column > 2 ? text : null }, shown(text, column));
  byId("segments").tHead.replaceChildren(element("tr", {}, ...heads.map((text, column) =>
    element("th", { scope: "col", class: column === 2 ? null : "number" }, text))));
  byId("segments").tBodies[0].replaceChildren(...rows.map((row) => element("tr", {}, ...row.map(cell))));
}
