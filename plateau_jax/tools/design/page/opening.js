// Files: the dialog that opens curves from JSON, and the file that Save downloads.

import { byId, element } from "./elements.js";

// openCurves(saved, name) adds the curve, or the curves of a saved page, that were saved; it throws
// the fault of an invalid one.
export function prepareOpening(/** @type {(saved: any, name: string) => Promise<void>} */ openCurves) {
  const dialog = byId("opening", HTMLDialogElement);
  const pasted = byId("pasted", HTMLTextAreaElement);
  const chosen = byId("file", HTMLInputElement);
  const fault = byId("opening-fault");
  let name = "Opened";

  byId("open").addEventListener("click", () => {
    pasted.form?.reset();
    fault.textContent = "";
    name = "Opened";
    dialog.showModal();
  });
  chosen.addEventListener("change", async () => {
    const file = chosen.files?.[0];
    if (!file) return;
    name = file.name.replace(/\.json$/i, "");
    pasted.value = await file.text();
  });
  byId("accept").addEventListener("click", async () => {
    try {
      await openCurves(JSON.parse(pasted.value), name);
      dialog.close();
    } catch (error) {
      fault.textContent = /** @type {Error} */ (error).message;
    }
  });
}

/** @param {string} name @param {object} content */
export function download(name, content) {
  const text = JSON.stringify(content, null, 1);
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  element("a", { href: address, download: name }).click();
  URL.revokeObjectURL(address);
}
