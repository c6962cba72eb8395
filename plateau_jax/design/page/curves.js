// The table of curves: which one is selected, their names, and how they compare with the first.

import { element, formatLearningRate, formatStep, setProperties } from "./elements.js";
import { swatch } from "./looks.js";

// entries: {id, colour, name, isHidden, total: its steps}; ratios: an answer of the server per id, or none yet.
// forecasts.cells(id) returns the cells of a curve's forecast, if any.
// listeners: select, rename, hide, remove, makeReference (move to the top), usePeak (take over the best peak).
export function drawCurves(body, entries, selected, ratios, forecasts, listeners) {
  const rows = entries.map((entry, index) => {
    const row = [...body.rows].find(({ dataset }) => dataset.id === String(entry.id)) ?? newRow(entry.id, listeners);
    updateRow(row, entry, index, entry.id === selected, ratios.get(entry.id), forecasts, entries, listeners);
    return row;
  });
  for (const row of [...body.rows]) if (!rows.includes(row)) row.remove();
  rows.forEach((row, index) => body.rows[index] === row || body.insertBefore(row, body.rows[index] ?? null));
}

// A row keeps its name field from one drawing to the next: with a new field, the browser would forget what was typed.
function newRow(id, listeners) {
  const name = element("input", {
    name: "name", "data-key": `curves/${id}/name`, maxlength: 40, spellcheck: "false",
    change: () => {
      name.defaultValue = name.value;
      listeners.rename(id, name.value);
    },
  });
  const select = ({ target }) => target.closest("button, a, [type=radio]") || listeners.select(id);
  return element("tr", { "data-id": id, click: select }, element("th", { scope: "row" }, element("div", { class: "name" },
    element("input", { type: "radio", name: "selected", "data-key": `curves/${id}/select`, change: () => listeners.select(id) }),
    element("span", { class: "swatch" }), name)));
}

function updateRow(row, entry, index, isSelected, ratios, forecasts, entries, listeners) {
  const key = (action) => `curves/${entry.id}/${action}`;
  const tabindex = isSelected ? null : -1;  // one row at a time, or Tab would stop at every control of the table
  const button = (text, label, action, disabled = false) => element("button", {
    type: "button", class: "plain", tabindex, "aria-label": `${label} ${entry.name}`, title: label, disabled,
    "data-key": key(action), click: () => listeners[action](entry.id),
  }, text);
  const [radio, name] = row.querySelectorAll("input");
  setProperties(radio, { "aria-label": `Edit ${entry.name}` }).checked = isSelected;
  setProperties(name, { "aria-label": `Name of ${entry.name}`, tabindex });
  const isTyped = name === document.activeElement && name.value !== name.defaultValue;
  name.defaultValue = entry.name;
  if (!isTyped && name.value !== entry.name) name.value = entry.name;
  row.querySelector(".swatch").replaceWith(swatch(entry.colour, isSelected));
  setProperties(row, { class: `colour-${entry.colour} ${isSelected ? "selected" : ""}` });
  row.querySelector(".length")?.remove();
  name.after(otherLength(entry, entries[0]));
  while (row.cells.length > 1) row.deleteCell(-1);
  row.append(
    ...forecasts.cells(entry.id),
    ...figures(entry, index, ratios, listeners, key, tabindex),
    element("td", { class: "row-actions" },
      index ? button("make reference", "Make reference:", "makeReference")
        : element("span", { class: "muted reference", tabindex: -1, "data-key": key("makeReference") }, "reference"),
      button(entry.isHidden ? "show" : "hide", entry.isHidden ? "Show" : "Hide", "hide"),
      button("×", "Remove", "remove", entries.length === 1)));
}

// The steps of a curve that is not as long as the first: its ratios compare runs of different cost.
function otherLength({ total }, first) {
  if (!total || !first.total || total === first.total) return "";
  return element("span", { class: "length", title: "Not as long as the first curve" }, formatStep(total), element("span", {}, " steps"));
}

function figures(entry, index, ratios, listeners, key, tabindex) {
  const use = (peak) => element("button", {
    type: "button", class: "link", tabindex, "data-key": key("usePeak"), "aria-label": `Use the best peak for ${entry.name}`,
    title: `Use ${peak} as the peak`, click: () => listeners.usePeak(entry.id, peak),
  }, "use");
  if (!ratios) return [element("td", { class: "number" }, "…"), element("td", { class: "number" }, "…")];
  if (ratios.fault) return [element("td", { class: "number muted", colspan: 2 }, ratios.fault)];
  const peak = rounded(ratios.best_peak);
  return [
    element("td", { class: "number", "data-figure": "bound", "data-label": "Bound" }, element("b", {}, `× ${ratios.bound.toFixed(3)}`)),
    element("td", { class: "number", "data-figure": "peak-ratio", "data-label": "Best peak" },
      element("b", {}, `× ${ratios.peak_ratio.toFixed(3)}`),
      ...(index ? [element("span", { class: "muted best" }, `  = ${formatLearningRate(peak)}`), use(peak)] : [])),
  ];
}

const rounded = (peak) => Number(peak.toPrecision(3));
