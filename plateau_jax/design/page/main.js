// The page: it holds the curves, asks the server about them, and shows the answers.

import { showCode } from "./code.js";
import { Controls } from "./controls.js";
import { drawCurves } from "./curves.js";
import { byId, element, formatLearningRate, formatStep, setProperties } from "./elements.js";
import { keepFocus } from "./focus.js";
import { Forecasts } from "./forecast.js";
import { addDecimals } from "./handles.js";
import { History, valueAt, withValue } from "./history.js";
import { freeLook } from "./looks.js";
import { prepareOpening } from "./opening.js";
import { stepsOf } from "./parts.js";
import { Picture } from "./picture.js";
import { ask, latestOnly, troubleText } from "./requests.js";
import { loadState, saveState } from "./saved.js";
import { TEMPLATES, distinctName } from "./templates.js";
import { listenForUndo } from "./undo_keys.js";

// By the curve's id: {answer, peak} of its last valid description, the question last asked, and its present fault.
const known = new Map();
let outlooks = new Map();
let history;
let initialCurves;  // as JSON, to recognize the saved state of another start of the server
let maxCurves;
let refreshed = Promise.resolve();  // resolves once the server's answers to the last change are shown
let queue = Promise.resolve();  // of key presses on handles

const showTrouble = (error) => {
  byId("trouble").hidden = false;
  byId("trouble").textContent = troubleText(error);
};

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

function add(name, curve, peak) {
  const id = Math.max(0, ...entries().map((entry) => entry.id)) + 1;
  const look = freeLook(entries().map((entry) => entry.colour));
  change(null, { selected: id, curves: [...entries(), { id, colour: look, name: freeName(name), peak, curve }] });
  if (entries().length >= maxCurves) focusRow();  // the buttons that add a curve are now disabled
}

const focusRow = () => document.querySelector("#curves tr.selected input")?.focus();

const freeName = (name, id = null) =>
  distinctName(name, entries().filter((entry) => entry.id !== id).map((entry) => entry.name));

// Add a copy of the selected curve, or another curve with its length, warmup and peak.
async function addFromTemplate(template) {
  const { answer } = known.get(selected().id) ?? {};
  const { name, curve, peak } = answer ? lastValid(selected()) : selected();
  if (template === "copy") return add(name, curve, peak);
  const { total = stepsOf(curve) || 10000, warmup = { warmup_steps: 0 } } = answer ?? {};
  const [title, description] = TEMPLATES[template](total, warmup);
  await openCurve(JSON.stringify(description), title, peak);
}

// Add the curve that a JSON text describes. Returns the fault of an invalid one, else undefined.
async function openCurve(text, name, peak) {
  const { curve, fault } = await ask("/open", { text });
  if (fault === undefined) add(name, curve, peak);
  return fault;
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

const refresh = latestOnly(async () => {
  for (const entry of entries()) {
    const question = { curve: entry.curve, peak: entry.peak };
    const asked = JSON.stringify(question);
    const before = known.get(entry.id);
    if (before?.asked === asked) continue;
    const answer = await ask("/curve", question);
    const isValid = answer.fault === undefined;
    known.set(entry.id, isValid ? { asked, answer, peak: entry.peak, fault: null } : { ...before, asked, fault: answer.fault });
  }
  byId("trouble").hidden = true;
  show();
  compare();
  forecasts.update();
  readLearningRates();
}, showTrouble);

const validEntries = () => entries().filter(({ id }) => known.get(id)?.answer);
const visibleEntries = () => validEntries().filter(({ id, isHidden }) => !isHidden || id === selected().id);
const largestOf = ({ id }) => known.get(id)?.answer?.largest ?? 1;  // multiplier
const asQuestion = ({ id }) => ({ curve: known.get(id).answer.curve, peak: known.get(id).peak });

const compare = latestOnly(async () => {
  const compared = validEntries();
  const answer = await ask("/outlook", { curves: compared.map(asQuestion) });
  outlooks = new Map(compared.map(({ id }, index) => [id, answer.outlooks[index]]));
  byId("note").textContent = answer.note;
  showCurves();
}, showTrouble);

const forecasts = new Forecasts({
  entries: validEntries, question: asQuestion, changed: () => showCurves(), settled: () => started.then(() => refreshed),
  visible: () => visibleEntries().map((entry) => ({ ...entry, isSelected: entry.id === selected().id })),
  largest: largestOf,
  useLargest: (lr) => change(null, { ...history.present, curves: entries().map((entry) => {
    const largest = largestOf(entry);
    return largest > 0 ? { ...entry, peak: Number((lr / largest).toPrecision(7)) } : entry;
  }) }),
  addCurve: add, isFull: () => entries().length >= maxCurves,
}, showTrouble);

const readLearningRates = latestOnly(async () => {
  if (picture.step === null) return;
  const shown = visibleEntries();
  const answer = await ask("/learning-rates", { curves: shown.map(asQuestion), step: picture.step });
  const texts = answer.learning_rates.map(formatLearningRate);
  byId("readout").replaceChildren(
    element("span", {}, "step ", element("b", {}, formatStep(answer.step))),
    ...shown.map(({ colour, name }, index) => element("span", { class: `colour-${colour}` },
      element("span", { class: "dot" }), `${name} `, element("b", {}, texts[index]))));
  picture.announce(`step ${answer.step}: ${shown.map(({ name }, index) => `${name} ${texts[index]}`).join(", ")}`);
}, showTrouble);

// The parts of the page

const show = (isUndone = false) => keepFocus(() => {
  const entry = selected();
  const { answer, fault = null } = known.get(entry.id) ?? {};
  controls.draw(entry, { fault, advice: answer?.advice, shapes: answer?.shapes, isUndone });
  picture.draw(visibleEntries().map(({ id, colour }) => ({
    id, colour, isSelected: id === entry.id, peak: known.get(id).peak, answer: known.get(id).answer,
  })));
  byId("picture").classList.toggle("stale", fault !== null);
  byId("stale").hidden = fault === null;
  byId("undo").disabled = !history.canUndo;
  byId("redo").disabled = !history.canRedo;
  const isFull = entries().length >= maxCurves;
  for (const button of document.querySelectorAll("#open, [data-add]")) {
    setProperties(button, { disabled: isFull, title: isFull ? `The page holds at most ${maxCurves} curves: remove one` : null });
  }
  showCurves();
  showSegments(answer);
  showCode(answer);
  // A reload also needs the last valid curve of each entry that is invalid now, or not answered yet.
  const isUnsettled = ({ id, curve, peak }) => known.get(id).fault || known.get(id).asked !== JSON.stringify({ curve, peak });
  saveState({ initialCurves, present: history.present, lastValid: validEntries().filter(isUnsettled).map((entry) => [entry.id, asQuestion(entry)]) });
});

const showCurves = () => keepFocus(() => {
  const shown = entries().map((entry) => ({ ...entry, total: known.get(entry.id)?.answer?.total }));
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
  leave: () => history?.endStep(),
});

const picture = new Picture(byId("picture"), {
  read: () => readLearningRates(),
  choose: select,
  enqueue: (action) => (queue = queue.then(() => refreshed).then(action).catch(showTrouble)),
  // A handle belongs to the curve on the picture, the last valid one, and its value is that curve's. A drag
  // always counts from the curve at its beginning, so that dragging back undoes it.
  move: (moved, isLast) => {
    if (moved !== null) {
      const entry = selected();
      let next = picture.isDragging ? (picture.beforeDrag ??= lastValid(entry)) : lastValid(entry);
      for (const [path, sign] of moved.handle.moves) {
        next = withValue(next, path, addDecimals(valueAt(next, path), sign * (moved.value - moved.handle.value)));
      }
      changeEntry(`move ${entry.id} ${moved.handle.name}`, next);
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

// The entry with its last valid curve and peak.
function lastValid(entry) {
  const { answer, peak } = known.get(entry.id);
  return { ...entry, curve: answer.curve, peak };
}

function undoOrRedo(action) {
  history[action]();
  show(true);
  refreshed = refresh();
}

byId("undo").addEventListener("click", () => undoOrRedo("undo"));
byId("redo").addEventListener("click", () => undoOrRedo("redo"));
listenForUndo(undoOrRedo);

for (const button of document.querySelectorAll("[data-add]")) {
  button.addEventListener("click", () => addFromTemplate(button.dataset.add).catch(showTrouble));
}

prepareOpening({
  open: (text, name) => openCurve(text, name, selected().peak),
  close: () => byId("open").disabled && focusRow(),
});

// Begin with the curves of the command line or, after a reload, with those that this tab had.

async function start() {
  const { curves, max_curves, max_log_bytes, shapes } = await ask("/start");
  controls.choices = shapes;
  maxCurves = max_curves;
  initialCurves = JSON.stringify(curves);
  const saved = loadState();
  const before = saved?.initialCurves === initialCurves ? saved : null;
  for (const [id, question] of before?.lastValid ?? []) {
    known.set(id, { asked: JSON.stringify(question), answer: await ask("/curve", question), peak: question.peak, fault: null });
  }
  const fresh = [];
  for (const entry of curves) {
    const name = distinctName(entry.name, fresh.map(({ name }) => name));
    fresh.push({ ...entry, id: fresh.length + 1, colour: fresh.length, name });
  }
  history = new History(before?.present ?? { selected: fresh.at(-1).id, curves: fresh });
  forecasts.start(initialCurves, max_log_bytes);
  byId("readout").textContent = "Point at the picture to read learning rates.";
  show();
  refreshed = refresh();
}

const started = start().catch(showTrouble);
