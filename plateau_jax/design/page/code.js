// The code to copy: a tab per format of the selected curve.

import { byId } from "./elements.js";
import { shareTabStop } from "./tab_stop.js";

const tabs = [...document.querySelectorAll("[role=tab]")];
let format = "optax";
let shown;  // the server's description of a curve

export function showCode(answer) {
  shown = answer;
  const text = answer?.[format] ?? "";
  if (byId("code").textContent !== text) byId("code").textContent = text;
  byId("code").setAttribute("aria-labelledby", `tab-${format}`);
  for (const tab of tabs) {
    const isSelected = tab.id === `tab-${format}`;
    tab.setAttribute("aria-selected", String(isSelected));
  }
}

const choose = (tab) => {
  format = tab.id.replace("tab-", "");
  showCode(shown);
};
for (const tab of tabs) tab.addEventListener("click", () => choose(tab));
shareTabStop(tabs, choose);

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
