// The code to copy: a tab per format of the selected curve.

import { byId } from "./elements.js";

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
    tab.tabIndex = isSelected ? 0 : -1;
  }
}

tabs.forEach((tab, index) => {
  tab.addEventListener("click", () => {
    format = tab.id.replace("tab-", "");
    showCode(shown);
  });
  tab.addEventListener("keydown", ({ key }) => {
    const neighbour = tabs[(index + { ArrowRight: 1, ArrowLeft: tabs.length - 1 }[key]) % tabs.length];
    neighbour?.focus();
    neighbour?.click();
  });
});

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
