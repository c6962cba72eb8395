// The table of curves: which one is selected, their names, and how they compare with the first.

import { element, formatLearningRate, formatStep, setProperties } from "./elements.js";
import { swatch } from "./looks.js";

// `ratios` has an answer of the server per id, or none yet.
/** @param {HTMLTableSectionElement} body @param {CurveRow[]} entries @param {number} selected @param {Map<number, Ratios>} ratios @param {RowListeners} listeners */
export function drawCurves(body, entries, selected, ratios, listeners) {
  const rows = entries.map((entry, index) => {
    const row = rowOf(body, entry.id) ?? newRow(entry.id, listeners);
    const drawn = {
      ...entry,
      isFirst: index === 0,
      isOnly: entries.length === 1,
      isSelected: entry.id === selected,
      firstTotal: entries[0].total,
      ratios: ratios.get(entry.id),
    };
    updateRow(row, drawn, listeners);
    return row;
  });
  placeRows(body, rows);
}

/** @param {HTMLTableSectionElement} body @param {number} id */
const rowOf = (body, id) => [...body.rows].find(({ dataset }) => dataset.id === String(id));

// Only the rows that have to move are moved: a field would lose the focus.
/** @param {HTMLTableSectionElement} body @param {HTMLTableRowElement[]} rows */
function placeRows(body, rows) {
  for (const row of [...body.rows]) {
    if (!rows.includes(row)) row.remove();
  }
  rows.forEach((row, index) => {
    const present = body.rows[index] ?? null;
    if (present !== row) body.insertBefore(row, present);
  });
}

/** @param {HTMLTableRowElement} row @param {DrawnRow} entry @param {RowListeners} listeners */
function updateRow(row, entry, listeners) {
  setProperties(row, { class: `colour-${entry.colour} ${entry.isSelected ? "selected" : ""}` });
  updateFirstCell(row, entry);
  while (row.cells.length > 1) row.deleteCell(-1);
  row.append(...ratioCells(entry, listeners), actionCell(entry, listeners));
}

// The first cell: which curve is selected, its look, its name and its length. It is kept from one
// drawing to the next: with a new field, the browser would forget what was typed.

/** @param {number} id @param {RowListeners} listeners */
function newRow(id, listeners) {
  const radio = element("input", {
    type: "radio",
    name: "selected",
    "data-key": `curves/${id}/select`,
    change: () => listeners.select(id),
  });
  const name = element("input", {
    name: "name",
    "data-key": `curves/${id}/name`,
    maxlength: 40,
    spellcheck: "false",
    change: () => {
      name.defaultValue = name.value;
      listeners.rename(id, name.value);
    },
  });
  const look = element("span", { class: "swatch" });
  const cell = element("th", { scope: "row" }, element("div", { class: "name" }, radio, look, name));
  const select = (/** @type {MouseEvent} */ { target }) => {
    const isControl = target instanceof Element && target.closest("button, a, [type=radio]");
    if (!isControl) listeners.select(id);
  };
  return element("tr", { "data-id": id, click: select }, cell);
}

/** @param {HTMLTableRowElement} row @param {DrawnRow} entry */
function updateFirstCell(row, entry) {
  const [radio, name] = row.querySelectorAll("input");
  setProperties(radio, { "aria-label": `Edit ${entry.name}` });
  radio.checked = entry.isSelected;
  setProperties(name, { "aria-label": `Name of ${entry.name}`, tabindex: tabindexIn(entry) });
  const isTyped = name === document.activeElement && name.value !== name.defaultValue;
  name.defaultValue = entry.name;
  if (!isTyped && name.value !== entry.name) name.value = entry.name;
  row.querySelector(".swatch")?.replaceWith(swatch(entry.colour, entry.isSelected));
  row.querySelector(".length")?.remove();
  name.after(otherLength(entry));
}

// The steps of a curve that is not as long as the first: its ratios compare runs of different cost.
function otherLength(/** @type {DrawnRow} */ { total, firstTotal }) {
  if (!total || !firstTotal || total === firstTotal) return "";
  const properties = { class: "length", title: "Not as long as the first curve" };
  return element("span", properties, formatStep(total), element("span", {}, " steps"));
}

// The cells of the bound and of the best peak.
/** @param {DrawnRow} entry @param {RowListeners} listeners */
function ratioCells(entry, listeners) {
  const { ratios } = entry;
  if (!ratios) return [waitingCell(), waitingCell()];
  if (ratios.fault) return [element("td", { class: "number muted", colspan: 2 }, ratios.fault)];
  const ratio = element("b", {}, `× ${ratios.peak_ratio.toFixed(3)}`);
  return [
    ratioCell("bound", "Bound", element("b", {}, `× ${ratios.bound.toFixed(3)}`)),
    ratioCell("peak-ratio", "Best peak", ratio, ...bestPeak(entry, ratios, listeners)),
  ];
}

const waitingCell = () => element("td", { class: "number" }, "…");

/** @param {string} figure @param {string} label @param {Node[]} children */
function ratioCell(figure, label, ...children) {
  return element("td", { class: "number", "data-figure": figure, "data-label": label }, ...children);
}

// The best peak as a learning rate, and the button that takes it over. The first curve has none.
/** @param {DrawnRow} entry @param {Ratios} ratios @param {RowListeners} listeners */
function bestPeak(entry, ratios, listeners) {
  if (entry.isFirst) return [];
  const peak = Number(ratios.best_peak.toPrecision(3));
  const use = rowButton(entry, "usePeak", "use", "Use the best peak for", {
    class: "link",
    title: `Use ${peak} as the peak`,
    click: () => listeners.usePeak(entry.id, peak),
  });
  return [element("span", { class: "muted" }, `  = ${formatLearningRate(peak)}`), use];
}

/** @param {DrawnRow} entry @param {RowListeners} listeners */
function actionCell(entry, listeners) {
  const { id, isFirst, isHidden, isOnly } = entry;
  const reference = { class: "muted reference", tabindex: -1, "data-key": keyOf(id, "makeReference") };
  const makeReference = rowButton(entry, "makeReference", "make reference", "Make reference:", {
    click: () => listeners.makeReference(id),
  });
  const hide = rowButton(entry, "hide", isHidden ? "show" : "hide", isHidden ? "Show" : "Hide", {
    click: () => listeners.hide(id),
  });
  const remove = rowButton(entry, "remove", "×", "Remove", {
    disabled: isOnly,
    click: () => listeners.remove(id),
  });
  const first = isFirst ? element("span", reference, "reference") : makeReference;
  return element("td", { class: "row-actions" }, first, hide, remove);
}

// A button for an action on a curve; `label` and the curve's name say what it does.
/** @param {DrawnRow} entry @param {string} action @param {string} text @param {string} label @param {Properties} properties */
function rowButton(entry, action, text, label, properties) {
  return element("button", {
    type: "button",
    class: "plain",
    tabindex: tabindexIn(entry),
    "aria-label": `${label} ${entry.name}`,
    title: label,
    "data-key": keyOf(entry.id, action),
    ...properties,
  }, text);
}

// It identifies a control that is drawn anew, which keeps the focus so.
/** @param {number} id @param {string} action */
const keyOf = (id, action) => `curves/${id}/${action}`;

// The tab key stops at the controls of the selected row only, or it would stop at every control of
// the table.
const tabindexIn = (/** @type {DrawnRow} */ { isSelected }) => (isSelected ? null : -1);
