// The page: it holds the curves, asks the server about them, and shows the answers.

import { Controls } from "./controls.js";
import { drawCurves } from "./curves.js";
import { showCode, showSegments } from "./details.js";
import { TEMPLATES, distinctName, movedEntry, stepsOf } from "./edits.js";
import { byId, element, formatLearningRate, formatStep, keepFocus, setProperties } from "./elements.js";
import { Forecasts } from "./forecast.js";
import { History, keepState, loadState, withValue } from "./history.js";
import { freeLook, swatch } from "./looks.js";
import { prepareOpening } from "./opening.js";
import { Picture } from "./picture.js";
import { ask, latestOnly, showTrouble } from "./requests.js";

// By the curve's id: {asked, fault, description}: the entry that the server was asked about, as JSON, and what it
// answered. If the entry has a fault, the description is that of when it was last valid.
const known = new Map();
let ratios = new Map();
let history;
let maxCurves;
const MAX_CURVE_BYTES = 2 ** 20, MAX_NAME = 40;
let refreshed = Promise.resolve();  // resolves once the server's answers to the last change are shown
let queue = Promise.resolve();  // of key presses on handles

// The state

const entries = () => history.present.curves;
const selected = () => entries().find(({ id }) => id === history.present.selected) ?? entries()[0];
const entryOf = (id) => entries().find((entry) => entry.id === id);

function change(key, next) {
  history.change(key, next);
  show();
  refreshed = refresh();
}

const changeEntry = (key, entry) =>
  change(key, { ...history.present, curves: entries().map((other) => (other.id === entry.id ? entry : other)) });

const isFull = () => entries().length >= maxCurves;
const fullText = () => `The page holds at most ${maxCurves} curves: remove one`;

function add(name, curve, peak) {
  const id = Math.max(0, ...entries().map((entry) => entry.id)) + 1;
  const look = freeLook(entries().map((entry) => entry.colour));
  change(null, { selected: id, curves: [...entries(), { id, colour: look, name: freeName(name.slice(0, MAX_NAME)), peak, curve }] });
  if (isFull()) focusRow();  // the buttons that add a curve are now disabled
}

const focusRow = () => document.querySelector("#curves tr.selected input")?.focus();

const freeName = (name, id = null) =>
  distinctName(name, entries().filter((entry) => entry.id !== id).map((entry) => entry.name));

// Add a copy of the selected curve, or another curve with its length, warmup and peak.
async function addFromTemplate(template) {
  const { name, curve, peak } = lastValid(selected());
  if (template === "copy") return add(name, curve, peak);
  const { total = stepsOf(curve) || 10000, warmup = { warmup_steps: 0 } } = descriptionOf(selected()) ?? {};
  const [title, description] = TEMPLATES[template](total, warmup);
  await openCurves(description, title);
}

// Add the curve of a description, or replace all curves by those of a saved page. Throws the fault of an invalid one.
async function openCurves(saved, name) {
  const isPage = saved?.curves !== undefined;
  if (!isPage && isFull()) throw new Error(fullText());
  const asked = isPage ? saved.curves : [{ name, curve: saved, peak: lastValid(selected()).peak }];
  const { curves } = await ask("/page", { curves: asked });
  const opened = curves.map(({ fault, curve, peak }, index) => {
    const title = String(asked[index].name || `Curve ${index + 1}`).slice(0, MAX_NAME);
    if (fault) throw new Error(isPage ? `${title}: ${fault.message}` : fault.message);
    return { name: title, curve, peak };
  });
  if (!opened.length) throw new Error("This page was saved without a curve");
  if (!isPage) return add(name, opened[0].curve, opened[0].peak);
  const first = Math.max(0, ...known.keys()) + 1;
  change(null, { selected: first + opened.length - 1, curves: opened.map((entry, index) => ({ ...entry, id: first + index, colour: index })) });
}

// Download the curves with their names and peaks: each as it was last valid, or as typed if no answer has come yet.
function save() {
  const curves = entries().map((entry) => (isAnswered(entry) ? lastValid(entry) : entry));
  const text = JSON.stringify({ curves: curves.map(({ name, peak, curve }) => ({ name, peak, curve })) }, null, 1);
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  element("a", { href: address, download: "curves.json" }).click();
  URL.revokeObjectURL(address);
}

function select(id) {
  if (id !== selected().id) {
    history.replace({ ...history.present, selected: id });
    show();
    readLearningRates();
  }
  if (document.activeElement === document.body) focusRow();  // after a click on the picture or on a row
}

// Questions to the server

const textOf = ({ curve, peak }) => JSON.stringify({ curve, peak });
const isAnswered = (entry) => known.get(entry.id)?.asked === textOf(entry);
const faultOf = ({ id }) => known.get(id)?.fault;
// The server's description of an entry as it is, or as it was last valid; undefined if there is none.
const descriptionOf = ({ id }) => known.get(id)?.description;
const largestOf = (entry) => descriptionOf(entry)?.largest ?? 1;  // multiplier
const validEntries = () => entries().filter(descriptionOf);
const visibleEntries = () => validEntries().filter(({ id, isHidden }) => !isHidden || id === selected().id);

function validPart(entry) {
  const { curve, peak } = descriptionOf(entry) ?? entry;
  return { curve, peak };
}

// The entry with its last valid curve and peak, or as it is without any.
const lastValid = (entry) => ({ ...entry, ...validPart(entry) });

// Ask for the descriptions of entries.
async function describe(asked) {
  const { curves } = await ask("/page", { curves: asked.map(({ curve, peak }) => ({ curve, peak })) });
  asked.forEach((entry, index) => {
    const { fault, ...description } = curves[index];
    known.set(entry.id, { asked: textOf(entry), fault, description: fault ? descriptionOf(entry) : description });
  });
}

const refresh = latestOnly(async () => {
  await describe(entries());
  byId("trouble").hidden = true;
  show();
  readLearningRates();
  compare();
}, showTrouble);

// Ask about the curves that are valid, or were so last. Lists in the answer become maps from the curves' ids.
async function askAboutValid(question) {
  const asked = validEntries();
  const answer = await ask("/page", { curves: asked.map(validPart), describe: false, ...question });
  const byCurve = ([name, value]) => [name, Array.isArray(value) ? new Map(asked.map(({ id }, index) => [id, value[index]])) : value];
  return Object.fromEntries(Object.entries(answer).map(byCurve));
}

const compare = latestOnly(async () => {
  const { runs } = forecasts;
  const answer = await askAboutValid({ runs: runs.map(({ text }) => text) });
  if (runs !== forecasts.runs) return;  // another question follows
  ratios = answer.ratios;
  byId("note").textContent = answer.note;
  forecasts.show(answer);
}, showTrouble);

const forecasts = new Forecasts({
  entries: validEntries, question: validPart, compare: () => compare(), changed: () => showCurves(),
  settled: () => started.then(() => refreshed),
  visible: () => visibleEntries().map((entry) => ({ ...entry, isSelected: entry.id === selected().id })),
  largest: largestOf,
  useLargest: (lr) => change(null, { ...history.present, curves: entries().map((entry) => {
    const largest = largestOf(entry);
    return largest > 0 ? { ...entry, peak: Number((lr / largest).toPrecision(7)) } : entry;
  }) }),
});

const readLearningRates = latestOnly(async () => {
  const { step } = picture;
  const { learning_rates: lrs } = step === null ? {} : await askAboutValid({ step });
  const shown = visibleEntries().map((entry) => ({ ...entry, lr: lrs?.has(entry.id) ? formatLearningRate(lrs.get(entry.id)) : "" }));
  byId("readout").replaceChildren(
    ...shown.map(({ id, colour, name, lr }) => element("span", {}, swatch(colour, id === selected().id), `${name} `, element("b", {}, lr))),
    step === null ? "Point at the picture to read learning rates." : element("span", {}, "at step ", element("b", {}, formatStep(step))));
  picture.announce(`step ${step ?? 0}: ${shown.map(({ name, lr }) => `${name} ${lr}`).join(", ")}`);
}, showTrouble);

// The parts of the page

const showFields = (isUndone = false) =>
  controls.draw(selected(), { fault: faultOf(selected()), advice: descriptionOf(selected())?.advice, isUndone });

const show = (isUndone = false) => keepFocus(() => {
  const entry = selected(), isStale = Boolean(faultOf(entry));
  showFields(isUndone);
  picture.draw(visibleEntries().map((shown) => ({
    id: shown.id, colour: shown.colour, name: shown.name, isSelected: shown.id === entry.id, answer: descriptionOf(shown),
  })));
  byId("picture").classList.toggle("stale", isStale);
  byId("stale").hidden = !isStale;
  byId("undo").disabled = !history.canUndo;
  byId("redo").disabled = !history.canRedo;
  for (const button of addButtons) {
    setProperties(button, { disabled: isFull(), title: isFull() ? fullText() : null });
  }
  showCurves();
  showSegments(descriptionOf(entry));
  showCode(descriptionOf(entry));
});

const showCurves = () => keepFocus(() => {
  const shown = entries().map((entry) => ({ ...entry, total: descriptionOf(entry)?.total }));
  byId("lengths").hidden = new Set(shown.map(({ total }) => total).filter(Boolean)).size < 2;
  drawCurves(byId("curves").tBodies[0], shown, selected().id, ratios, forecasts, {
    select,
    rename: (id, name) => changeEntry(null, { ...entryOf(id), name: name.trim() || freeName(`Curve ${id}`, id) }),
    hide: (id) => changeEntry(null, { ...entryOf(id), isHidden: !entryOf(id).isHidden }),
    remove: (id) => {
      const remaining = entries().filter((entry) => entry.id !== id);
      change(null, { selected: id === selected().id ? remaining[0].id : selected().id, curves: remaining });
    },
    makeReference: (id) => {
      const others = entries().filter((entry) => entry.id !== id);
      change(null, { ...history.present, curves: [entryOf(id), ...others] });
    },
    usePeak: (id, peak) => changeEntry(null, { ...entryOf(id), peak }),
  });
  forecasts.draw();
});

// Actions of the user

const controls = new Controls(byId("controls"), {
  entry: selected,
  edit: (path, value) => changeEntry(`field ${selected().id} ${path}`, withValue(selected(), path, value)),
  restructure: (changed) => changeEntry(null, changed(selected())),
  leave: () => {
    history?.endStep();
    if (controls.isWaiting) queueMicrotask(() => showFields());
  },
});

const picture = new Picture(byId("picture"), {
  read: () => readLearningRates(),
  choose: select,
  enqueue: (action) => (queue = queue.then(() => refreshed).then(action).catch(showTrouble)),
  // A handle belongs to the curve on the picture, the last valid one, and its value is that curve's. A drag
  // always counts from the curve at its beginning, so that dragging back undoes it.
  move: (moved, isLast) => {
    const entry = selected();
    const distance = moved === null ? 0 : moved.value - moved.handle.value;
    // Without an answer to what was typed last, the handle does not know it, and would undo it.
    if (moved !== null && (picture.beforeDrag || (distance !== 0 && isAnswered(entry)))) {
      const before = picture.isDragging ? (picture.beforeDrag ??= lastValid(entry)) : lastValid(entry);
      changeEntry(`move ${entry.id} ${moved.handle.name}`, distance === 0 ? before : movedEntry(before, moved.handle, distance));
    }
    if (isLast) {
      picture.beforeDrag = null;
      if (moved === null) history.endStep();
      show();
    }
  },
});

new ResizeObserver(([{ target }]) => {
  document.documentElement.style.setProperty("--picture-height", `${target.offsetHeight}px`);
}).observe(byId("picture").parentElement);

// Where there is one column, the fields follow the code. In the page itself, so that the focus moves in the same order.
const isNarrow = matchMedia("(max-width: 899.98px)");
const placeFields = () => keepFocus(() => {
  const [fields, code, segments] = ["controls", "copy", "segments"].map((name) => document.querySelector(`.card.${name}`));
  if (isNarrow.matches) code.after(fields);
  else segments.before(fields);
});
isNarrow.addEventListener("change", placeFields);
placeFields();

function undoOrRedo(action) {
  history[action]();
  show(true);
  refreshed = refresh();
}

byId("undo").addEventListener("click", () => undoOrRedo("undo"));
byId("redo").addEventListener("click", () => undoOrRedo("redo"));
byId("save").addEventListener("click", save);
document.addEventListener("keydown", (event) => {
  const action = { z: event.shiftKey ? "redo" : "undo", y: "redo" }[event.key.toLowerCase()];
  if (!action || !(event.ctrlKey || event.metaKey) || event.altKey) return;
  // There they undo the typing.
  if (event.target.matches("[name=name]") || document.querySelector("dialog[open]")) return;
  event.preventDefault();  // the browser's undo, which knows the text of one field only
  undoOrRedo(action);
});

const addButtons = [...document.querySelectorAll("[data-add]")];
for (const button of addButtons) {
  button.addEventListener("click", () => addFromTemplate(button.dataset.add).catch(showTrouble));
}

const showFile = prepareOpening(openCurves);

async function holdsCurves(file) {
  if (file.size > MAX_CURVE_BYTES) return false;
  try {
    const content = JSON.parse(await file.text());
    return ["curves", "kind", "stages", "total_steps"].some((key) => key in content);
  } catch {
    return false;
  }
}

// A file that is dropped on the page would replace it, except in a field for files.
addEventListener("dragover", (event) => event.target.matches("[type=file]") || event.preventDefault());
addEventListener("drop", async (event) => {
  const files = [...event.dataTransfer.files];
  if (!files.length || event.target.matches("[type=file]")) return;
  event.preventDefault();
  if (byId("opening").open) return;
  if (await holdsCurves(files[0])) showFile(files[0]);
  else forecasts.dialog.open(files);
});

// Begin with the curves of the command line or, after a reload, with those that this tab had.

async function start() {
  const { curves, max_curves, max_log_bytes, shapes } = await ask("/start");
  controls.choices = shapes;
  maxCurves = max_curves;
  const initialCurves = JSON.stringify(curves);  // to recognize the saved state of another start of the server
  const fresh = curves.map((entry, index) => ({ ...entry, id: index + 1, colour: index }));
  for (const [index, entry] of fresh.entries()) entry.name = distinctName(entry.name, fresh.slice(0, index).map(({ name }) => name));
  const saved = loadState("curves"), before = saved?.initialCurves === initialCurves ? saved : null;
  history = new History(before ?? { present: { selected: fresh.at(-1).id, curves: fresh } });
  await describe(before?.valid ?? []);
  const validPair = (entry) => ({ id: entry.id, ...validPart(entry) });
  keepState("curves", () => ({ initialCurves, ...history.saved, valid: validEntries().map(validPair) }));
  forecasts.start(initialCurves, max_log_bytes);
  show();
  refreshed = refresh();
}

const started = start().catch(showTrouble);
