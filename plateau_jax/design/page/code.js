// The code to copy, in the chosen format, for the selected curve.

import { byId } from "./elements.js";

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
