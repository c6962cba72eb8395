// Files: the dialog that opens curves from JSON, files that are dropped on the page, and the one
// that Save downloads.

import { byId, element } from "./elements.js";

// openCurves(saved, name) adds the curve, or the curves of a saved page, that were saved; it throws
// the fault of an invalid one.
export function prepareOpening(/** @type {(saved: any, name: string) => Promise<void>} */ openCurves) {
  const showFile = prepareDialog(openCurves);

  // A file that is dropped on the page would replace it, except in a field for files.
  addEventListener("dragover", (event) => {
    if (!isForFiles(event.target)) event.preventDefault();
  });
  addEventListener("drop", (event) => {
    const file = event.dataTransfer?.files[0];
    if (!file || isForFiles(event.target)) return;
    event.preventDefault();
    if (!byId("opening", HTMLDialogElement).open) showFile(file);
  });
}

/** @param {EventTarget | null} target */
const isForFiles = (target) => target instanceof HTMLInputElement && target.type === "file";

// Returns showFile(file), which opens the dialog with a file.
function prepareDialog(/** @type {(saved: any, name: string) => Promise<void>} */ openCurves) {
  const dialog = byId("opening", HTMLDialogElement);
  const pasted = byId("pasted", HTMLTextAreaElement);
  const chosen = byId("file", HTMLInputElement);
  const fault = byId("opening-fault");
  let name = "Opened";

  const show = () => {
    pasted.form?.reset();
    fault.textContent = "";
    name = "Opened";
    dialog.showModal();
  };
  const read = async (/** @type {File} */ file) => {
    name = file.name.replace(/\.json$/i, "");
    pasted.value = await file.text();
  };

  byId("open").addEventListener("click", show);
  chosen.addEventListener("change", () => {
    if (chosen.files?.length) read(chosen.files[0]);
  });
  byId("accept").addEventListener("click", async () => {
    try {
      await openCurves(JSON.parse(pasted.value), name);
      dialog.close();
    } catch (error) {
      fault.textContent = /** @type {Error} */ (error).message;
    }
  });
  /** @param {File} file */
  return (file) => {
    show();
    return read(file);
  };
}

/** @param {string} name @param {object} content */
export function download(name, content) {
  const text = JSON.stringify(content, null, 1);
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  element("a", { href: address, download: name }).click();
  URL.revokeObjectURL(address);
}
