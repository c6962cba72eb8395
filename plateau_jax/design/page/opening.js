// The dialog that opens curves from JSON.

import { byId } from "./elements.js";

// open(saved, name) adds the curve, or the curves of a saved page, that were saved; it throws the fault of an invalid
// one. Returns showFile(file), which opens the dialog with a file.
export function prepareOpening(open) {
  const dialog = byId("opening"), pasted = byId("pasted"), fault = byId("opening-fault");
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
  byId("file").addEventListener("change", ({ target }) => target.files.length && read(target.files[0]));
  byId("accept").addEventListener("click", async () => {
    try {
      await open(JSON.parse(pasted.value), name);
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
