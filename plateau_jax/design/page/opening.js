// The dialog that opens a curve from JSON.

import { byId } from "./elements.js";

// The name of the curve in a file.
export const nameOfFile = ({ name }) => name.replace(/\.json$/i, "");

// open(text, name) adds the curve or the curves that the text describes, or returns the fault of an invalid one.
export function prepareOpening(open) {
  byId("open").addEventListener("click", () => {
    byId("opening-fault").textContent = "";
    byId("opening").showModal();
  });
  byId("file").addEventListener("change", async ({ target }) => {
    if (target.files.length) byId("pasted").value = await target.files[0].text();
  });
  byId("accept").addEventListener("click", async () => {
    try {
      const [file] = byId("file").files;
      const fault = await open(byId("pasted").value, file ? nameOfFile(file) : "Opened");
      byId("opening-fault").textContent = fault ?? "";
      if (fault !== undefined) return;
      byId("opening").querySelector("form").reset();
      byId("opening").close();
    } catch (error) {
      byId("opening-fault").textContent = error.message;
    }
  });
}
