// Ctrl+Z and Ctrl+Shift+Z: they undo changes of the curves, or the typing in a field that has not changed them yet.

const isTextField = (node) => node?.matches("input:not([type]), textarea");
// Fields set their default to the text that the curves have.
const isPending = (field) => isTextField(field) && field.value !== field.defaultValue;

export function listenForUndo(undoOrRedo) {
  let typed = null;  // the field whose typing the browser can undo or redo
  document.addEventListener("input", ({ target }) => isPending(target) && (typed = target));
  document.addEventListener("focusout", () => (typed = null));
  document.addEventListener("change", () => (typed = null));
  document.addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.altKey || document.querySelector("dialog[open]")) return;
    const action = { z: event.shiftKey ? "redo" : "undo", y: "redo" }[event.key.toLowerCase()];
    if (action === undefined) return;
    if (action === "undo" ? isPending(event.target) : typed === event.target) return;
    event.preventDefault();  // the browser's undo, which knows the text of one field only
    typed = null;
    undoOrRedo(action);
  });
}
