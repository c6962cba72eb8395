// The table of curves: which one is edited, its name, and how it compares with the first.

import { drawn, element, ofRates } from "./elements.js";
import { DASHES } from "./picture.js";

// entries: {id, own, name, isHidden}; outlooks: an answer for each id, or none yet.
// listeners: choose, rename, hide, remove, lead (make it the first), take (take the advised peak).
export function drawCurves(body, entries, chosen, outlooks, listeners) {
  const focused = body.contains(document.activeElement) ? document.activeElement : null;
  body.replaceChildren(...entries.map((entry, at) => row(entry, at, entry.id === chosen, outlooks.get(entry.id), entries.length, listeners)));
  const again = focused && body.querySelector(`[data-key="${focused.dataset.key}"]`);
  again?.focus();
  if (again?.name === "name") again.value = focused.value;  // which is being typed
}

function row(entry, at, isChosen, outlook, many, listeners) {
  const key = (what) => `${what}-${entry.id}`;
  const button = (text, label, what, disabled = false) => element("button", {
    type: "button", class: "plain", "aria-label": `${label} ${entry.name}`, title: label, disabled,
    "data-key": key(what), click: () => listeners[what](entry.id),
  }, text);
  const choice = element("input", {
    type: "radio", name: "chosen", "aria-label": `Edit ${entry.name}`, "data-key": key("choose"),
    change: () => listeners.choose(entry.id),
  });
  choice.checked = isChosen;
  const name = element("input", {
    name: "name", value: entry.name, "aria-label": `Name of ${entry.name}`, "data-key": key("name"), maxlength: 40, spellcheck: "false",
    change: (event) => listeners.rename(entry.id, event.target.value),
  });
  const swatch = drawn("svg", { class: "swatch", width: 26, height: 8, "aria-hidden": "true" },
    drawn("line", { x1: 0, x2: 26, y1: 4, y2: 4, "stroke-width": isChosen ? 3 : 2, "stroke-dasharray": (!isChosen && DASHES[entry.own]) || null }));
  return element("tr", { class: `own-${entry.own} ${isChosen ? "chosen" : ""}`, "data-id": entry.id },
    element("td", {}, element("div", { class: "name" }, choice, swatch, name)),
    ...figures(entry, at, outlook, listeners, key),
    element("td", { class: "row-actions" },
      at ? button("make reference", "Compare the others with", "lead") : element("span", { class: "muted reference" }, "reference"),
      button(entry.isHidden ? "show" : "hide", entry.isHidden ? "Show" : "Hide", "hide", isChosen),
      button("×", "Remove", "remove", many === 1)));
}

function figures(entry, at, outlook, listeners, key) {
  if (!outlook) return [element("td", { class: "number" }, "…"), element("td", { class: "number" }, "…")];
  if (outlook.fault) return [element("td", { class: "number muted", colspan: 2 }, outlook.fault)];
  const { bound, advised, rate } = outlook;
  const take = element("button", {
    type: "button", class: "link", "data-key": key("take"), "aria-label": `Take the advised peak for ${entry.name}`,
    title: "Take it as the peak", click: () => listeners.take(entry.id, Number(rate.toPrecision(3))),
  }, "use");
  return [
    element("td", { class: "number", "data-figure": "bound", "data-label": "Cost" }, element("b", {}, `× ${bound.toFixed(3)}`)),
    element("td", { class: "number", "data-figure": "advised", "data-label": "Peak" }, element("b", {}, `× ${advised.toFixed(3)}`),
      ...(at ? [element("span", { class: "muted" }, `  = ${ofRates(Number(rate.toPrecision(3)))}`), take] : [])),
  ];
}
