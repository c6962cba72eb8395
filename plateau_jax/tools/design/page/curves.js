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
  const buttons = new RowButtons(entry, listeners);
  setProperties(row, { class: `colour-${entry.colour} ${entry.isSelected ? "selected" : ""}` });
  updateFirstCell(row, entry);
  while (row.cells.length > 1) row.deleteCell(-1);
  row.append(...ratioCells(entry, buttons), actionCell(entry, buttons));
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
  /** @param {MouseEvent} event */
  const select = ({ target }) => {
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
/** @param {DrawnRow} entry */
function otherLength({ total, firstTotal }) {
  if (!total || !firstTotal || total === firstTotal) return "";
  const properties = { class: "length", title: "Not as long as the first curve" };
  return element("span", properties, formatStep(total), element("span", {}, " steps"));
}

// The cells of the bound and of the best peak.
/** @param {DrawnRow} entry @param {RowButtons} buttons */
function ratioCells(entry, buttons) {
  const { ratios } = entry;
  if (!ratios) return [waitingCell(), waitingCell()];
  if (ratios.fault) return [element("td", { class: "number muted", colspan: 2 }, ratios.fault)];
  return [boundCell(ratios), peakCell(entry, ratios, buttons)];
}

const waitingCell = () => element("td", { class: "number" }, "…");

/** @param {Ratios} ratios */
function boundCell({ bound }) {
  const properties = { class: "number", "data-figure": "bound", "data-label": "Bound" };
  return element("td", properties, element("b", {}, `× ${bound.toFixed(3)}`));
}

/** @param {DrawnRow} entry @param {Ratios} ratios @param {RowButtons} buttons */
function peakCell({ isFirst }, ratios, buttons) {
  const properties = { class: "number", "data-figure": "peak-ratio", "data-label": "Best peak" };
  const ratio = element("b", {}, `× ${ratios.peak_ratio.toFixed(3)}`);
  if (isFirst) return element("td", properties, ratio);
  const peak = Number(ratios.best_peak.toPrecision(3));
  const asPeak = element("span", { class: "muted best" }, `  = ${formatLearningRate(peak)}`);
  return element("td", properties, ratio, asPeak, buttons.usePeak(peak));
}

/** @param {DrawnRow} entry @param {RowButtons} buttons */
function actionCell(entry, buttons) {
  return element("td", { class: "row-actions" },
    buttons.makeReference(),
    entry.isHidden ? buttons.plain("show", "Show", "hide") : buttons.plain("hide", "Hide", "hide"),
    buttons.plain("×", "Remove", "remove", { disabled: entry.isOnly }));
}

// The tab key stops at the controls of the selected row only, or it would stop at every control of
// the table.
/** @param {DrawnRow} entry */
const tabindexIn = ({ isSelected }) => (isSelected ? null : -1);

class RowButtons {
  #entry;
  #listeners;

  /** @param {DrawnRow} entry @param {RowListeners} listeners */
  constructor(entry, listeners) {
    this.#entry = entry;
    this.#listeners = listeners;
  }

  // A button for an action on the curve; `label` and the curve's name say what it does.
  /** @param {string} text @param {string} label @param {"makeReference" | "hide" | "remove"} action */
  plain(text, label, action, { disabled = false } = {}) {
    return element("button", {
      type: "button",
      class: "plain",
      tabindex: tabindexIn(this.#entry),
      "aria-label": `${label} ${this.#entry.name}`,
      title: label,
      disabled,
      "data-key": this.#key(action),
      click: () => this.#listeners[action](this.#entry.id),
    }, text);
  }

  // In the first row, the word `reference` stands in the button's place.
  makeReference() {
    if (!this.#entry.isFirst) return this.plain("make reference", "Make reference:", "makeReference");
    const properties = { class: "muted reference", tabindex: -1, "data-key": this.#key("makeReference") };
    return element("span", properties, "reference");
  }

  /** @param {number} peak */
  usePeak(peak) {
    return element("button", {
      type: "button",
      class: "link",
      tabindex: tabindexIn(this.#entry),
      "aria-label": `Use the best peak for ${this.#entry.name}`,
      title: `Use ${peak} as the peak`,
      "data-key": this.#key("usePeak"),
      click: () => this.#listeners.usePeak(this.#entry.id, peak),
    }, "use");
  }

  // It identifies a control that is drawn anew, which keeps the focus so.
  /** @param {string} action */
  #key(action) {
    return `curves/${this.#entry.id}/${action}`;
  }
}
