// The page: what is described, what the server says of it, and where each part of that is shown.

import { Controls, stepsOf } from "./controls.js";
import { drawCurves } from "./curves.js";
import { element, ofRates, ofSteps } from "./elements.js";
import { added } from "./handles.js";
import { at, History, withValue } from "./history.js";
import { Picture } from "./picture.js";
import { ask, latest } from "./requests.js";
import { load, save } from "./saved.js";

const COLOURS = 6;
const page = (id) => document.getElementById(id);

// Of each curve's id: the last answer to a valid description, with its peak; what was asked; what is wrong now.
const known = new Map();
let outlooks = new Map();
let history;
let saved;
let most;
let code = "optax";
let refreshed = Promise.resolve();
let turns = Promise.resolve();

const failed = (error) => {
  const isGone = error instanceof TypeError;
  page("trouble").hidden = false;
  page("trouble").textContent = isGone
    ? "The server does not answer. Start it again with python -m plateau_jax --design, then reload; what is described here stays."
    : error.message;
};

// What is described

const entries = () => history.present.curves;
const chosen = () => entries().find(({ id }) => id === history.present.chosen) ?? entries()[0];

function change(key, next) {
  history.change(key, next);
  show();
  refreshed = refresh();
}

const changeEntry = (key, entry) =>
  change(key, { ...history.present, curves: entries().map((other) => (other.id === entry.id ? entry : other)) });

function add(name, curve, peak) {
  const id = Math.max(0, ...entries().map((entry) => entry.id)) + 1;
  const taken = entries().map(({ own }) => own);
  const free = Array.from({ length: COLOURS }, (_, own) => own).find((own) => own && !taken.includes(own)) ?? (id % (COLOURS - 1)) + 1;
  history.pause();
  change(null, { chosen: id, curves: [...entries(), { id, own: free, name, peak, curve }] });
}

const ADDED = {
  copy: () => [`${chosen().name} (copy)`, structuredClone(chosen().curve)],
  cosine: (steps, warmup) => ["Cosine", { total_steps: steps, warmup_steps: warmup }],
  linear: (steps, warmup) => ["Line to 0", { total_steps: steps, warmup_steps: warmup, decay_shape: "linear" }],
  stable: (steps, warmup) => ["Stable + cooldown",
    { total_steps: steps, warmup_steps: warmup, plateaus: [[0, 80]], decay_shape: "linear" }],
  stages: (steps, warmup) => ["Stages", { kind: "staged", start: warmup ? 0 : 1, stages: [
    [warmup, 1, "linear"], [Math.round((steps - warmup) * 0.7), null, "linear"],
    [steps - warmup - Math.round((steps - warmup) * 0.7), 0, "1-sqrt"]].filter(([steps]) => steps) }],
};

async function addKind(kind) {
  const curve = known.get(chosen().id)?.answer?.curve ?? chosen().curve;
  let base = curve;
  while (base.curve) base = base.curve;
  const steps = stepsOf(curve) || 10000;
  const [name, description] = ADDED[kind](steps, Math.min(base.warmup_steps ?? 0, steps - 1));
  await open(JSON.stringify(description), name, chosen().peak);
}

// Another curve, of a text in JSON. Returns what is wrong with it, if anything is.
async function open(text, name, peak) {
  const { curve, fault } = await ask("/open", { text });
  if (fault === undefined) add(name, curve, peak);
  return fault;
}

// What the server says of it

const refresh = latest(async () => {
  for (const entry of entries()) {
    const question = { curve: entry.curve, peak: entry.peak };
    const asked = JSON.stringify(question);
    const before = known.get(entry.id);
    if (before?.asked === asked) continue;
    const answer = await ask("/curve", question);
    const isValid = answer.fault === undefined;
    known.set(entry.id, isValid ? { asked, answer, peak: entry.peak, fault: null } : { ...before, asked, fault: answer.fault });
  }
  page("trouble").hidden = true;
  show();
  compare();
  readRates();
}, failed);

const valid = () => entries().filter(({ id }) => known.get(id)?.answer);
const asQuestion = ({ id }) => ({ curve: known.get(id).answer.curve, peak: known.get(id).peak });

const compare = latest(async () => {
  const asked = valid();
  const { outlooks: found, note } = await ask("/outlook", { curves: asked.map(asQuestion) });
  outlooks = new Map(asked.map(({ id }, place) => [id, found[place]]));
  page("note").textContent = note;
  showCurves();
}, failed);

const readRates = latest(async () => {
  if (picture.step === null) return;
  const asked = valid().filter(({ id, isHidden }) => !isHidden || id === chosen().id);
  const { step, rates } = await ask("/rates", { curves: asked.map(asQuestion), step: picture.step });
  const words = asked.map((entry, place) => element("span", { class: `own-${entry.own}` },
    element("span", { class: "dot" }), `${entry.name} `, element("b", {}, ofRates(rates[place]))));
  page("readout").replaceChildren(element("span", {}, "step ", element("b", {}, ofSteps(step))), ...words);
  picture.say(`step ${step}: ${asked.map((entry, place) => `${entry.name} ${ofRates(rates[place])}`).join(", ")}`);
}, failed);

// Where it is shown

function show(isUndone = false) {
  const entry = chosen();
  const { answer, fault = null } = known.get(entry.id) ?? {};
  controls.draw(entry, { fault, advice: answer?.advice, isUndone });
  picture.draw(valid().filter(({ id, isHidden }) => !isHidden || id === entry.id).map(({ id, own }) => ({
    own, isChosen: id === entry.id, peak: known.get(id).peak, answer: known.get(id).answer,
  })));
  page("picture").classList.toggle("stale", fault !== null);
  page("stale").hidden = fault === null;
  page("undo").disabled = !history.canUndo;
  page("redo").disabled = !history.canRedo;
  for (const button of document.querySelectorAll("#open, [data-add]")) button.disabled = entries().length >= most;
  showCurves();
  showSegments(answer);
  showCode(answer);
  save({ saved, present: history.present });
}

function showCurves() {
  drawCurves(page("curves").tBodies[0], entries(), chosen().id, outlooks, {
    choose: (id) => {
      history.replace({ ...history.present, chosen: id });
      show();
      readRates();
    },
    rename: (id, name) => changeEntry(null, { ...entries().find((entry) => entry.id === id), name: name.trim() || `Curve ${id}` }),
    hide: (id) => {
      const entry = entries().find((other) => other.id === id);
      changeEntry(null, { ...entry, isHidden: !entry.isHidden });
    },
    remove: (id) => {
      const left = entries().filter((entry) => entry.id !== id);
      change(null, { chosen: id === chosen().id ? left[0].id : chosen().id, curves: left });
    },
    lead: (id) => {
      const first = entries().find((entry) => entry.id === id);
      change(null, { ...history.present, curves: [first, ...entries().filter((entry) => entry !== first)] });
    },
    take: (id, peak) => changeEntry(null, { ...entries().find((entry) => entry.id === id), peak }),
  });
}

function showSegments(answer) {
  const [heads, ...rows] = answer?.segments ?? [[]];
  const cell = (text, column) => element("td", { class: column === 2 ? null : "number" }, text);
  page("segments").tHead.replaceChildren(element("tr", {}, ...heads.map((text, column) =>
    element("th", { scope: "col", class: column === 2 ? null : "number" }, text))));
  page("segments").tBodies[0].replaceChildren(...rows.map((row) => element("tr", {}, ...row.map(cell))));
}

function showCode(answer) {
  const text = answer?.[code] ?? "";
  if (page("code").textContent !== text) page("code").textContent = text;
  page("code").setAttribute("aria-labelledby", `tab-${code}`);
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const isChosen = tab.id === `tab-${code}`;
    tab.setAttribute("aria-selected", String(isChosen));
    tab.tabIndex = isChosen ? 0 : -1;
  }
}

// What the user does

const controls = new Controls(page("controls"), {
  entry: chosen,
  edit: (path, value) => changeEntry(`field ${chosen().id} ${path}`, withValue(chosen(), path, value)),
  restructure: (changed) => {
    history.pause();
    changeEntry(null, changed(chosen()));
  },
  pause: () => history?.pause(),
});

const picture = new Picture(page("picture"), {
  read: () => readRates(),
  inTurn: (act) => (turns = turns.then(() => refreshed).then(act).catch(failed)),
  // What is moved is the curve on the picture, the last valid one; each handle's value tells how far.
  move: (moved, isLast) => {
    if (moved !== null) {
      const entry = chosen();
      let next = picture.isHeld ? (picture.before ??= current(entry)) : current(entry);
      for (const [path, sign] of moved.handle.moves) {
        next = withValue(next, path, added(at(next, path), sign * (moved.value - moved.handle.value)));
      }
      changeEntry(`move ${entry.id} ${moved.handle.name}`, next);
    }
    if (isLast) {
      picture.before = null;
      if (moved === null) history.pause();
      show();
    }
  },
});

// An entry with the last description and peak that were valid.
function current(entry) {
  const { answer, peak } = known.get(entry.id);
  return { ...entry, curve: answer.curve, peak };
}

function travel(way) {
  history[way]();
  show(true);
  refreshed = refresh();
}

page("undo").addEventListener("click", () => travel("undo"));
page("redo").addEventListener("click", () => travel("redo"));
document.addEventListener("keydown", (event) => {
  if (!(event.ctrlKey || event.metaKey) || event.altKey || page("opening").open) return;
  const way = { z: event.shiftKey ? "redo" : "undo", y: "redo" }[event.key.toLowerCase()];
  if (way === undefined) return;
  event.preventDefault();
  travel(way);
});

for (const button of document.querySelectorAll("[data-add]")) {
  button.addEventListener("click", () => addKind(button.dataset.add).catch(failed));
}

const tabs = [...document.querySelectorAll("[role=tab]")];
tabs.forEach((tab, place) => {
  tab.addEventListener("click", () => {
    code = tab.id.replace("tab-", "");
    showCode(known.get(chosen().id)?.answer);
  });
  tab.addEventListener("keydown", ({ key }) => {
    const other = tabs[(place + { ArrowRight: 1, ArrowLeft: tabs.length - 1 }[key]) % tabs.length];
    other?.focus();
    other?.click();
  });
});

page("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(page("code").textContent);
    page("copied").textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(page("code"));
    page("copied").textContent = "Selected: press Ctrl+C";
  }
  setTimeout(() => (page("copied").textContent = ""), 2500);
});

page("open").addEventListener("click", () => {
  page("opening-fault").textContent = "";
  page("opening").showModal();
});
page("file").addEventListener("change", async ({ target }) => {
  if (target.files.length) page("pasted").value = await target.files[0].text();
});
page("accept").addEventListener("click", async () => {
  try {
    const file = page("file").files[0]?.name.replace(/\.json$/i, "");
    const fault = await open(page("pasted").value, file ?? "Opened", chosen().peak);
    page("opening-fault").textContent = fault ?? "";
    if (fault !== undefined) return;
    page("opening").querySelector("form").reset();
    page("opening").close();
  } catch (error) {
    page("opening-fault").textContent = error.message;
  }
});

// The start: what the command line says, or what this tab had before it was loaded again.

async function start() {
  const { curves, ...more } = await ask("/start");
  most = more.most;
  saved = JSON.stringify(curves);
  const before = load();
  const fresh = curves.map((entry, place) => ({ id: place + 1, own: place % COLOURS, ...entry }));
  history = new History(before?.saved === saved ? before.present : { chosen: fresh.at(-1).id, curves: fresh });
  page("readout").textContent = "Point at the picture to read the rates there.";
  show();
  refresh();
}

start().catch(failed);
