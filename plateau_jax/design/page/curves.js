// The table of curves: which one is selected, their names, and how they compare with the first.

import { element, formatLearningRate, svgElement } from "./elements.js";
import { DASHES } from "./picture.js";

// entries: {id, colour, name, isHidden}; outlooks: an answer of the server per id, or none yet.
// forecastCell(id) returns the cell of a curve's forecast, or null.
// listeners: select, rename, hide, remove, makeReference (move to the top), usePeak (take over the best peak).
export function drawCurves(body, entries, selected, outlooks, forecastCell, listeners) {
  const focused = body.contains(document.activeElement) ? document.activeElement : null;
  body.replaceChildren(...entries.map((entry, index) =>
    row(entry, index, entry.id === selected, outlooks.get(entry.id), forecastCell(entry.id), entries.length, listeners)));
  // The rows are new nodes: give the focus, and a name that is being typed, back to the same control.
  const control = focused && body.querySelector(`[data-key="${focused.dataset.key}"]`);
  control?.focus();
  if (control?.name === "name") control.value = focused.value;
}

function row(entry, index, isSelected, outlook, forecast, count, listeners) {
  const key = (action) => `${action}-${entry.id}`;
  const button = (text, label, action, disabled = false) => element("button", {
    type: "button", class: "plain", "aria-label": `${label} ${entry.name}`, title: label, disabled,
    "data-key": key(action), click: () => listeners[action](entry.id),
  }, text);
  const radio = element("input", {
    type: "radio", name: "selected", "aria-label": `Edit ${entry.name}`, "data-key": key("select"),
    change: () => listeners.select(entry.id),
  });
  radio.checked = isSelected;
  const name = element("input", {
    name: "name", value: entry.name, "aria-label": `Name of ${entry.name}`, "data-key": key("name"), maxlength: 40, spellcheck: "false",
    change: (event) => listeners.rename(entry.id, event.target.value),
  });
  const swatch = svgElement("svg", { class: "swatch", width: 26, height: 8, "aria-hidden": "true" },
    svgElement("line", { x1: 0, x2: 26, y1: 4, y2: 4, "stroke-width": isSelected ? 3 : 2, "stroke-dasharray": (!isSelected && DASHES[entry.colour]) || null }));
  return element("tr", { class: `colour-${entry.colour} ${isSelected ? "selected" : ""}`, "data-id": entry.id },
    element("td", {}, element("div", { class: "name" }, radio, swatch, name)),
    ...figures(entry, index, outlook, listeners, key),
    forecast,
    element("td", { class: "row-actions" },
      index ? button("make reference", "Compare the others with", "makeReference") : element("span", { class: "muted reference" }, "reference"),
      button(entry.isHidden ? "show" : "hide", entry.isHidden ? "Show" : "Hide", "hide", isSelected),
      button("×", "Remove", "remove", count === 1)));
}

function figures(entry, index, outlook, listeners, key) {
  if (!outlook) return [element("td", { class: "number" }, "…"), element("td", { class: "number" }, "…")];
  if (outlook.fault) return [element("td", { class: "number muted", colspan: 2 }, outlook.fault)];
  const peak = Number(outlook.best_peak.toPrecision(3));
  const use = element("button", {
    type: "button", class: "link", "data-key": key("usePeak"), "aria-label": `Use the best peak for ${entry.name}`,
    title: "Use as the peak", click: () => listeners.usePeak(entry.id, peak),
  }, "use");
  return [
    element("td", { class: "number", "data-figure": "bound", "data-label": "Bound" }, element("b", {}, `× ${outlook.bound.toFixed(3)}`)),
    element("td", { class: "number", "data-figure": "peak-ratio", "data-label": "Best peak" }, element("b", {}, `× ${outlook.peak_ratio.toFixed(3)}`),
      ...(index ? [element("span", { class: "muted" }, `  = ${formatLearningRate(peak)}`), use] : [])),
  ];
}
