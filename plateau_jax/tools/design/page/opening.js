// Files: the dialog that opens curves from JSON, files that are dropped on the page, and the one
// that Save downloads.

import { byId, element } from "./elements.js";

// openCurves(saved, name) adds the curve, or the curves of a saved page, that were saved; it throws
// the fault of an invalid one.
export function prepareOpening(openCurves) {
  const showFile = prepareDialog(openCurves);

  // A file that is dropped on the page would replace it, except in a field for files.
  addEventListener("dragover", (event) => {
    if (!event.target.matches("[type=file]")) event.preventDefault();
  });
  addEventListener("drop", (event) => {
    const [file] = event.dataTransfer.files;
    if (!file || event.target.matches("[type=file]")) return;
    event.preventDefault();
    if (!byId("opening").open) showFile(file);
  });
}

// Returns showFile(file), which opens the dialog with a file.
function prepareDialog(openCurves) {
  const dialog = byId("opening");
  const pasted = byId("pasted");
  const fault = byId("opening-fault");
  let name;

  const show = () => {
    dialog.querySelector("form").reset();
    fault.textContent = "";
    name = "Opened";
    dialog.showModal();
  };
  const read = async (file) => {
    name = file.name.replace(/\.json$/i, "");
    pasted.value = await file.text();
  };

  byId("open").addEventListener("click", show);
  byId("file").addEventListener("change", ({ target }) => {
    if (target.files.length) read(target.files[0]);
  });
  byId("accept").addEventListener("click", async () => {
    try {
      await openCurves(JSON.parse(pasted.value), name);
      dialog.close();
    } catch (error) {
      fault.textContent = error.message;
    }
  });
  return (file) => {
    show();
    return read(file);
  };
}

export function download(name, content) {
  const text = JSON.stringify(content, null, 1);
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  element("a", { href: address, download: name }).click();
  URL.revokeObjectURL(address);
}
