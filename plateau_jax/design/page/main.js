// The page: it holds the curves, asks the server about them, and shows the answers.

import { showCode } from "./code.js";
import { Controls } from "./controls.js";
import { drawCurves } from "./curves.js";
import { byId, element, formatLearningRate, formatStep, setProperties } from "./elements.js";
import { keepFocus } from "./focus.js";
import { Forecasts } from "./forecast.js";
import { movedEntry } from "./handles.js";
import { History, withValue } from "./history.js";
import { freeLook } from "./looks.js";
import { nameOfFile, prepareOpening } from "./opening.js";
import { stepsOf } from "./parts.js";
import { Picture } from "./picture.js";
import { Unanswered, ask, latestOnly } from "./requests.js";
import { loadState, saveState } from "./saved.js";
import { shareTabStop } from "./tab_stop.js";
import { TEMPLATES, distinctName } from "./templates.js";
import { listenForUndo } from "./undo_keys.js";

// By the curve's id: {asked, answer}: the entry that the server was asked about, as JSON, and its answer. If the entry
// has a fault, the answer describes how it was when it was last valid.
const known = new Map();
let outlooks = new Map();
let history;
let initialCurves;  // as JSON, to recognize the saved state of another start of the server
let maxCurves;
const MAX_CURVE_BYTES = 2 ** 20, MAX_NAME = 40;
let refreshed = Promise.resolve();  // resolves once the server's answers to the last change are shown
let queue = Promise.resolve();  // of key presses on handles

const RETRY = 2000;  // milliseconds
let retry = null;  // the timer of the next question to a server that does not answer, else null
const isOffline = () => document.body.matches(".offline");

const showTrouble = (error) => {
  byId("trouble").hidden = false;
  // Screen readers would announce an unchanged message again if it were set.
  if (byId("trouble").textContent !== error.message) byId("trouble").textContent = error.message;
  if (!(error instanceof Unanswered)) return;
  document.body.classList.add("offline");
  retry ??= setTimeout(reconnect, RETRY);
};

// Ask again until the server answers; then catch up with the changes made meanwhile.
async function reconnect() {
  retry = null;
  try {
    await ask("/start");
    document.body.classList.remove("offline");
    if (!history) return location.reload();
    refreshed = refresh();
  } catch (error) {
    showTrouble(error);
  }
}

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
  const answer = descriptionOf(selected());
  const { name, curve, peak } = lastValid(selected());
  if (template === "copy") return add(name, curve, peak);
  const { total = stepsOf(curve) || 10000, warmup = { warmup_steps: 0 } } = answer ?? {};
  const [title, description] = TEMPLATES[template](total, warmup);
  await openCurve(JSON.stringify(description), title, peak);
}

// Add the curve that a JSON text describes, or replace all curves by those of a saved page. Returns the fault of an
// invalid text, else undefined.
async function openCurve(text, name, peak) {
  const { curve, curves, fault } = await ask("/open", { text });
  if (curve && isFull()) return fullText();
  if (curve) add(name, curve, peak);
  if (curves) {
    const first = Math.max(0, ...known.keys()) + 1;
    const opened = curves.map((entry, index) => ({ ...entry, id: first + index, colour: index }));
    change(null, { selected: opened.at(-1).id, curves: opened });
  }
  return fault;
}

// Open a dropped file if it holds curves. Returns false if it does not, as a log.
async function openDropped(file) {
  if (file.size > MAX_CURVE_BYTES) return false;
  try {
    const text = await file.text();
    const keys = keysOf(text);
    if (!["curves", "kind", "stages", "total_steps"].some((key) => keys.includes(key))) return false;
    const fault = await openCurve(text, nameOfFile(file), selected().peak);
    if (fault !== undefined) throw new Error(`${file.name}: ${fault}`);
  } catch (error) {
    showTrouble(error);
  }
  return true;
}

function keysOf(text) {
  try {
    return Object.keys(JSON.parse(text) ?? {});
  } catch {
    return [];
  }
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
const answerOf = ({ id }) => known.get(id)?.answer;
const isAnswered = (entry) => known.get(entry.id)?.asked === textOf(entry);
// The server's description of an entry as it is, or as it was last valid; undefined if there is none.
const descriptionOf = (entry) => (answerOf(entry)?.curve ? answerOf(entry) : undefined);
const largestOf = (entry) => descriptionOf(entry)?.largest ?? 1;  // multiplier
const validEntries = () => entries().filter(descriptionOf);
const visibleEntries = () => validEntries().filter(({ id, isHidden }) => !isHidden || id === selected().id);

function validPart(entry) {
  const { curve, peak } = descriptionOf(entry) ?? entry;
  return { curve, peak };
}

// The entry with its last valid curve and peak, or as it is without any.
const lastValid = (entry) => ({ ...entry, ...validPart(entry) });

// Descriptions of the curves, or a comparison of them given the runs of logs; the learning rates at the cursor in any case.
const askAbout = (asked, { describe = false, runs = null }) => ask("/page", {
  curves: asked.map((entry) => ({ curve: entry.curve, peak: entry.peak, before: descriptionOf(entry) ? validPart(entry) : null })),
  describe, step: picture.step, runs,
});

const refresh = latestOnly(async () => {
  const asked = entries();
  const answer = await askAbout(asked, { describe: true });
  asked.forEach((entry, index) => known.set(entry.id, { asked: textOf(entry), answer: answer.curves[index] }));
  byId("trouble").hidden = true;
  show();
  showLearningRates(asked, answer);
  compare();
}, showTrouble);

// Bounds and forecasts of all curves, by their ids, and what is said of runs.
async function askToCompare(runs) {
  const asked = entries();
  const answer = await askAbout(asked, { runs });
  const perCurve = (values = []) => new Map(asked.map(({ id }, index) => [id, values[index]]));
  return { ...answer, outlooks: perCurve(answer.outlooks), forecasts: perCurve(answer.forecasts) };
}

const compare = latestOnly(async () => {
  const { runs } = forecasts;
  const answer = await askToCompare(runs.map(({ text }) => text));
  if (runs !== forecasts.runs) return;  // another question follows
  outlooks = answer.outlooks;
  byId("note").textContent = answer.note;
  forecasts.show(answer);
}, showTrouble);

const forecasts = new Forecasts({
  entries: validEntries, question: validPart, ask: askToCompare, compare: () => compare(), changed: () => showCurves(),
  settled: () => started.then(() => refreshed),
  visible: () => visibleEntries().map((entry) => ({ ...entry, isSelected: entry.id === selected().id })),
  largest: largestOf,
  useLargest: (lr) => change(null, { ...history.present, curves: entries().map((entry) => {
    const largest = largestOf(entry);
    return largest > 0 ? { ...entry, peak: Number((lr / largest).toPrecision(7)) } : entry;
  }) }),
  addCurve: add, openDropped, isFull,
});

const readLearningRates = latestOnly(async () => {
  const asked = entries();
  if (picture.step !== null) showLearningRates(asked, await askAbout(asked, {}));
}, showTrouble);

function showLearningRates(asked, { step, learning_rates }) {
  if (!learning_rates) return;
  const texts = new Map();
  asked.forEach(({ id }, index) => learning_rates[index] !== null && texts.set(id, formatLearningRate(learning_rates[index])));
  const shown = visibleEntries().filter(({ id }) => texts.has(id));
  byId("readout").replaceChildren(
    element("span", {}, "step ", element("b", {}, formatStep(step))),
    ...shown.map(({ id, colour, name }) => element("span", { class: `colour-${colour}` },
      element("span", { class: "dot" }), `${name} `, element("b", {}, texts.get(id)))));
  picture.announce(`step ${step}: ${shown.map(({ id, name }) => `${name} ${texts.get(id)}`).join(", ")}`);
}

// The parts of the page

function showFields(isUndone = false) {
  const { fault = null, advice, shapes } = answerOf(selected()) ?? {};
  controls.draw(selected(), { fault, advice, shapes, isUndone });
}

const show = (isUndone = false) => keepFocus(() => {
  const entry = selected(), isStale = Boolean(answerOf(entry)?.fault);
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
  // A reload also needs the last valid curve of each entry that is invalid now, or not answered yet.
  const needed = validEntries().filter((entry) => answerOf(entry).fault || !isAnswered(entry));
  saveState({ initialCurves, present: history.present, lastValid: needed.map((entry) => [entry.id, validPart(entry)]) });
});

const showCurves = () => keepFocus(() => {
  const shown = entries().map((entry) => ({ ...entry, total: descriptionOf(entry)?.total }));
  byId("lengths").hidden = new Set(shown.map(({ total }) => total).filter(Boolean)).size < 2;
  drawCurves(byId("curves").tBodies[0], shown, selected().id, outlooks, forecasts, {
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

function showSegments(answer) {
  const [heads, ...rows] = answer?.segments ?? [[]];
  // Six digits of the learning rates would not fit next to the fields; the tooltip has them.
  const shown = (text, column) => (column < 2 ? formatStep(text) : column > 2 ? formatLearningRate(Number(text)) : text);
  const cell = (text, column) => element("td", { class: column === 2 ? null : "number", title: column > 2 ? text : null }, shown(text, column));
  byId("segments").tHead.replaceChildren(element("tr", {}, ...heads.map((text, column) =>
    element("th", { scope: "col", class: column === 2 ? null : "number" }, text))));
  byId("segments").tBodies[0].replaceChildren(...rows.map((row) => element("tr", {}, ...row.map(cell))));
}

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
    const canBegin = distance !== 0 && isAnswered(entry) && !isOffline();
    if (moved !== null && (picture.beforeDrag || canBegin)) {
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
listenForUndo(undoOrRedo);

const addButtons = [...document.querySelectorAll("[data-add]")];
shareTabStop(addButtons);
for (const button of addButtons) {
  button.addEventListener("click", () => addFromTemplate(button.dataset.add).catch(showTrouble));
}

prepareOpening((text, name) => openCurve(text, name, selected().peak));

// Begin with the curves of the command line or, after a reload, with those that this tab had.

async function start() {
  const { curves, max_curves, max_log_bytes, shapes } = await ask("/start");
  controls.choices = shapes;
  maxCurves = max_curves;
  initialCurves = JSON.stringify(curves);
  const saved = loadState();
  const before = saved?.initialCurves === initialCurves ? saved : null;
  for (const [id, entry] of before?.lastValid ?? []) {
    const { curves: [answer] } = await ask("/page", { curves: [entry] });
    known.set(id, { asked: textOf(entry), answer });
  }
  const fresh = [];
  for (const entry of curves) {
    const name = distinctName(entry.name, fresh.map(({ name }) => name));
    fresh.push({ ...entry, id: fresh.length + 1, colour: fresh.length, name });
  }
  history = new History(before?.present ?? { selected: fresh.at(-1).id, curves: fresh }, loadState("history"));
  addEventListener("pagehide", () => saveState(history.saved, "history"));
  forecasts.start(initialCurves, max_log_bytes);
  byId("readout").textContent = "Point at the picture to read learning rates.";
  show();
  refreshed = refresh();
}

const started = start().catch(showTrouble);
