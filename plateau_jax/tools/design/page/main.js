// The page: it keeps the curves, asks the server about them, and shows the answers.

import { Controls } from "./controls.js";
import { drawCurves } from "./curves.js";
import { describe, descriptionOf, faultOf, isAnswered, lastValid, unusedId, validPart } from "./descriptions.js";
import { showCode, showSegments } from "./details.js";
import { TEMPLATES, distinctName, movedEntry } from "./edits.js";
import { byId, element, formatLearningRate, formatStep, keepFocus, setProperties } from "./elements.js";
import { History, keepState, loadState, withValue } from "./history.js";
import { DASHES, freeLook, swatch } from "./looks.js";
import { download, prepareOpening } from "./opening.js";
import { Picture } from "./picture.js";
import { ask, latestOnly, showTrouble } from "./requests.js";

const MAX_NAME = 40;
const MAX_CURVES = DASHES.length;  // all look different
const MOST = `The page shows at most ${MAX_CURVES} curves`;

/** @type {Map<number, Ratios>} */
let ratios = new Map();  // the server's comparison with the first curve, by the curve's id
/** @type {History} */ let history;
let refreshed = Promise.resolve();  // resolves once the server's answers to the last change are shown
let queue = Promise.resolve();  // of actions that need these answers
/** @type {Entry | null} */ let beforeDrag = null;  // the entry at the beginning of a drag

// The state

const entries = () => history.present.curves;
const selected = () => entries().find(({ id }) => id === history.present.selected) ?? entries()[0];
/** @param {number} id */
const entryOf = (id) => /** @type {Entry} */ (entries().find((entry) => entry.id === id));
const entriesBut = (/** @type {number | null} */ id) => entries().filter((entry) => entry.id !== id);

// The valid entries, and those that the picture shows.
const validEntries = () => entries().filter(descriptionOf);
const visibleEntries = () => validEntries()
  .map((entry) => {
    const answer = /** @type {Description} */ (descriptionOf(entry));
    return { ...entry, isSelected: entry.id === selected().id, answer };
  })
  .filter(({ isHidden, isSelected }) => !isHidden || isSelected);

// The entry with numbers in place of texts such as 10k, once the server has read them.
/** @param {Entry} entry */
const asRead = (entry) => (isAnswered(entry) && !faultOf(entry) ? lastValid(entry) : entry);

// Successive changes with the same key form one undo step.
/** @param {string | null} key @param {State} next */
function change(key, next) {
  history.change(key, next);
  show();
  refreshed = refresh();
}

/** @param {string | null} key @param {Entry} entry */
function changeEntry(key, entry) {
  const curves = entries().map((other) => (other.id === entry.id ? entry : other));
  change(key, { ...history.present, curves });
}

// Do something once the answers to the last change are shown.
function enqueue(/** @type {() => void} */ action) {
  queue = queue.then(() => refreshed).then(action).catch(showTrouble);
}

function undoOrRedo(/** @type {"undo" | "redo"} */ action) {
  history[action]();
  show({ isUndone: true });
  refreshed = refresh();
}

// Adding, opening and saving curves

const isFull = () => entries().length >= MAX_CURVES;
const FULL = `${MOST}: remove one`;

/** @param {string} name @param {Curve} curve @param {Typed} peak */
function add(name, curve, peak) {
  const id = Math.max(0, ...entries().map((entry) => entry.id)) + 1;
  const colour = freeLook(entries().map((entry) => entry.colour));
  const entry = { id, colour, name: freeName(name.slice(0, MAX_NAME)), peak, curve };
  change(null, { selected: id, curves: [...entries(), entry] });
  if (isFull()) focusRow();  // the buttons that add a curve are now disabled
}

function focusRow() {
  const radio = byId("curves").querySelector("tr.selected input");
  /** @type {HTMLElement | null} */ (radio)?.focus();
}

// The name, or one with a number if a curve other than that of the id has it.
/** @param {string} name @param {number | null} id */
const freeName = (name, id = null) => distinctName(name, entriesBut(id).map((entry) => entry.name));

// Add a copy of the selected curve, or another curve with its length, warmup and peak.
async function addFromTemplate(/** @type {string} */ template) {
  const { name, curve, peak } = lastValid(selected());
  if (template === "copy") return add(name, curve, peak);
  // A curve that was never valid has no description.
  const { total, warmup } = descriptionOf(selected()) ?? { total: 10000, warmup: { warmup_steps: 0 } };
  const [title, added] = TEMPLATES[template](total, warmup);
  await openCurves(added, title);
}

// Add the curve of a description, or replace all curves by those of a saved page. Throws the fault
// of an invalid one.
/** @param {any} saved @param {string} name */
async function openCurves(saved, name) {
  if (saved?.curves !== undefined) return openPage(saved.curves);
  await refreshed;  // a peak that was typed last is valid only once it is answered
  if (isFull()) throw new Error(FULL);
  const asked = { curve: saved, peak: lastValid(selected()).peak };
  const { curves } = await ask("/describe", { curves: [asked] });
  const [{ fault, curve, peak }] = curves;
  if (fault) throw new Error(fault.message);
  add(name, curve, peak);
}

async function openPage(/** @type {SavedCurve[]} */ saved) {
  const { curves } = await ask("/describe", { curves: saved });
  if (!curves.length) throw new Error("This page was saved without a curve");
  if (curves.length > MAX_CURVES) throw new Error(MOST);
  const firstId = unusedId();
  const opened = saved.map((entry, index) => {
    const { fault, curve, peak } = curves[index];
    const name = String(entry.name || `Curve ${index + 1}`).slice(0, MAX_NAME);
    if (fault) throw new Error(`${name}: ${fault.message}`);
    return { id: firstId + index, colour: index, name, peak, curve };
  });
  change(null, { selected: opened[opened.length - 1].id, curves: opened });
}

// Download the curves with their names and peaks: each as it was last valid, or as typed if no
// answer has come yet.
function save() {
  const curves = entries().map((entry) => {
    const { name, peak, curve } = isAnswered(entry) ? lastValid(entry) : entry;
    return { name, peak, curve };
  });
  download("curves.json", { curves });
}

// Questions to the server

const refresh = latestOnly(async () => {
  await describe(entries());
  byId("trouble").hidden = true;
  show();
  readLearningRates();
  compare();
});

// Ask about the curves that are valid, or were so last. Lists in the answer become maps from the
// curves' ids.
/** @param {string} path @param {object} [question] */
async function askAboutValid(path, question) {
  const asked = validEntries();
  const answer = await ask(path, { curves: asked.map(validPart), ...question });
  for (const [name, value] of Object.entries(answer)) {
    if (!Array.isArray(value)) continue;
    answer[name] = new Map(asked.map(({ id }, index) => [id, value[index]]));
  }
  return answer;
}

const compare = latestOnly(async () => {
  const answer = await askAboutValid("/compare");
  ratios = answer.ratios;
  byId("note").textContent = answer.note;
  showCurves();
});

const readLearningRates = latestOnly(async () => {
  const { step } = picture;
  let lrs = new Map();
  if (step !== null) lrs = (await askAboutValid("/learning_rates", { step })).learning_rates;
  const shown = visibleEntries().map((entry) => {
    const lr = lrs.has(entry.id) ? formatLearningRate(lrs.get(entry.id)) : "";
    return { ...entry, lr };
  });
  showReadout(step, shown);
  picture.announce(`step ${step ?? 0}: ${shown.map(({ name, lr }) => `${name} ${lr}`).join(", ")}`);
});

// The line below the picture: the names of the curves, and their learning rates at a step, if there
// is one.
/** @param {number | null} step @param {(VisibleEntry & { lr: string })[]} shown */
function showReadout(step, shown) {
  const items = shown.map(({ colour, name, isSelected, lr }) =>
    element("span", {}, swatch(colour, isSelected), `${name} `, element("b", {}, lr)));
  const atStep = step === null
    ? "Point at the picture to read learning rates."
    : element("span", {}, "at step ", element("b", {}, formatStep(step)));
  byId("readout").replaceChildren(...items, atStep);
}

// The parts of the page

const controls = new Controls(byId("controls", HTMLFormElement), {
  entry: () => asRead(selected()),
  edit: (path, value) => changeEntry(`field ${selected().id} ${path}`, withValue(selected(), path, value)),
  restructure: (changed) => changeEntry(null, changed(asRead(selected()))),
  leave: () => {
    history?.endStep();
    if (controls.isWaiting) queueMicrotask(() => showFields());
  },
});

const picture = new Picture(byId("picture", SVGSVGElement), {
  read: () => readLearningRates(),
  choose: select,
  enqueue,
  move: moveHandle,
  endDrag: () => {
    beforeDrag = null;
    history.endStep();
    show();
  },
});

// A handle belongs to the curve on the picture, the last valid one, and its value is that curve's.
// A drag always counts from the curve at its beginning, so that dragging back undoes it.
function moveHandle(/** @type {{ handle: Handle, value: number }} */ { handle, value }) {
  const entry = selected();
  const distance = value - handle.value;
  // Without an answer to what was typed last, the handle does not know it, and would undo it.
  const knowsEntry = distance !== 0 && isAnswered(entry);
  if (beforeDrag === null && !knowsEntry) return;
  let before = lastValid(entry);
  if (picture.isDragging) {
    beforeDrag ??= before;
    before = beforeDrag;
  }
  const next = distance === 0 ? before : movedEntry(before, handle, distance);
  changeEntry(`move ${entry.id} ${handle.name}`, next);
}

// Drawing

function show({ isUndone = false } = {}) {
  keepFocus(() => {
    showFields({ isUndone });
    showPicture();
    showButtons();
    showCurves();
    showSegments(descriptionOf(selected()));
    showCode(descriptionOf(selected()));
  });
}

function showFields({ isUndone = false } = {}) {
  const entry = selected();
  controls.draw(entry, { fault: faultOf(entry), advice: descriptionOf(entry)?.advice, isUndone });
}

function showPicture() {
  picture.draw(visibleEntries());
  const isStale = Boolean(faultOf(selected()));
  byId("picture", SVGSVGElement).classList.toggle("stale", isStale);
  byId("stale").hidden = !isStale;
}

function showButtons() {
  byId("undo", HTMLButtonElement).disabled = !history.canUndo;
  byId("redo", HTMLButtonElement).disabled = !history.canRedo;
  for (const button of addButtons) {
    setProperties(button, { disabled: isFull(), title: isFull() ? FULL : null });
  }
}

function showCurves() {
  keepFocus(() => {
    const shown = entries().map((entry) => ({ ...entry, total: descriptionOf(entry)?.total }));
    const totals = new Set(shown.map(({ total }) => total).filter(Boolean));
    byId("lengths").hidden = totals.size < 2;
    drawCurves(byId("curves", HTMLTableElement).tBodies[0], shown, selected().id, ratios, rowListeners);
  });
}

// Actions of the user

/** @type {RowListeners} */ const rowListeners = {
  select,
  rename: (id, typed) => {
    const name = typed.trim() || freeName(`Curve ${id}`, id);
    changeEntry(null, { ...entryOf(id), name });
  },
  hide: (id) => changeEntry(null, { ...entryOf(id), isHidden: !entryOf(id).isHidden }),
  remove: (id) => {
    const remaining = entriesBut(id);
    const isSelected = id === selected().id;
    change(null, { selected: isSelected ? remaining[0].id : selected().id, curves: remaining });
  },
  makeReference: (id) => change(null, { ...history.present, curves: [entryOf(id), ...entriesBut(id)] }),
  usePeak: (id, peak) => changeEntry(null, { ...entryOf(id), peak }),
};

function select(/** @type {number} */ id) {
  if (id !== selected().id) {
    history.replace({ ...history.present, selected: id });
    show();
    readLearningRates();
  }
  if (document.activeElement === document.body) focusRow();  // after a click on the picture or on a row
}

byId("undo").addEventListener("click", () => undoOrRedo("undo"));
byId("redo").addEventListener("click", () => undoOrRedo("redo"));
byId("save").addEventListener("click", save);
document.addEventListener("keydown", (event) => {
  /** @type {Record<string, "undo" | "redo" | undefined>} */
  const actions = { z: event.shiftKey ? "redo" : "undo", y: "redo" };
  const action = actions[event.key.toLowerCase()];
  const hasModifier = (event.ctrlKey || event.metaKey) && !event.altKey;
  if (!action || !hasModifier) return;
  // There they undo the typing.
  if (document.activeElement?.matches("[name=name]") || document.querySelector("dialog[open]")) return;
  event.preventDefault();  // the browser's undo, which knows the text of one field only
  undoOrRedo(action);
});

/** @type {NodeListOf<HTMLButtonElement>} */
const addButtons = document.querySelectorAll("[data-add]");
for (const button of addButtons) {
  button.addEventListener("click", () => enqueue(() => addFromTemplate(button.dataset.add ?? "")));
}

prepareOpening(openCurves);

// The window

/** @param {string} name */
const card = (name) => /** @type {HTMLElement} */ (document.querySelector(`.card.${name}`));

new ResizeObserver(() => {
  document.documentElement.style.setProperty("--picture-height", `${card("picture").offsetHeight}px`);
}).observe(card("picture"));

// Where there is one column, the fields follow the code. In the page itself, so that the focus
// moves in the same order.
const isNarrow = matchMedia("(max-width: 899.98px)");

function placeFields() {
  keepFocus(() => {
    if (isNarrow.matches) card("copy").after(card("controls"));
    else card("segments").before(card("controls"));
  });
}

isNarrow.addEventListener("change", placeFields);
placeFields();

// Begin with the curves of the command line or, after a reload, with those that this tab had.

async function start() {
  const { curves, shapes } = await ask("/start");
  controls.choices = shapes;
  if (curves.length > MAX_CURVES) throw new Error(MOST);
  // Recognizes the state that was saved under another start of the server.
  const initialCurves = JSON.stringify(curves);
  const saved = loadState();
  const before = saved?.initialCurves === initialCurves ? saved : null;
  history = new History(before ?? { present: initialState(curves) });
  await describe(before?.valid ?? []);
  keepState(() => {
    const valid = validEntries().map((entry) => ({ id: entry.id, ...validPart(entry) }));
    return { initialCurves, ...history.saved, valid };
  });
  show();
  refreshed = refresh();
}

function initialState(/** @type {SavedCurve[]} */ named) {
  /** @type {Entry[]} */ const curves = [];
  for (const [index, entry] of named.entries()) {
    const name = distinctName(entry.name, curves.map((earlier) => earlier.name));
    curves.push({ ...entry, name, id: index + 1, colour: index });
  }
  return { selected: curves[curves.length - 1].id, curves };
}

start().catch(showTrouble);
