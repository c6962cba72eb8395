// Forecasts of the loss: the runs whose logs the user opened, the fits of the law to them, and their forecasts.

import { byId, element, formatLearningRate, sentence } from "./elements.js";
import { LogDialog, describeRun } from "./logs.js";
import { LossPicture } from "./losses.js";
import { loadState, saveState } from "./saved.js";

const PART = "logs";  // of the saved state
const MAX_STAGES = 400;  // of a curve that can be edited
const SAME_PEAK = 0.01;  // relative difference of peaks that is not worth a button

export class Forecasts {
  #page;
  #runs = [];
  #initialCurves;
  #fit = null;  // the server's answer about the present runs, or a fault
  #answers = new Map();  // a forecast, or a fault, by the curve's id
  #dialog;
  #picture = new LossPicture();

  // page.entries() returns the valid curves, page.visible() those on the picture, page.question(entry) the curve and
  // the peak of one of them. page.ask(runs) asks the server about all curves and these runs, page.compare() asks about
  // the present runs and calls `show`. page.settled() resolves once the server has described all curves, page.changed()
  // is called when there is something new to show. page.largest(entry) returns a curve's largest multiplier,
  // page.useLargest(lr) gives all curves a largest learning rate, page.addCurve(name, curve, peak) adds one,
  // page.isFull() says that there is no room for one.
  constructor(page) {
    this.#page = page;
    this.#dialog = new LogDialog(byId("opening-log"), {
      ...page, add: (runs) => this.#setRuns([...this.#runs, ...runs]), judge: (runs, again) => this.#judge(runs, again),
    });
    byId("open-log").addEventListener("click", () => this.#dialog.open());
  }

  // Begin with the runs that this tab had before a reload.
  start(initialCurves, maxLogBytes) {
    this.#dialog.maxBytes = maxLogBytes;
    this.#initialCurves = initialCurves;
    const before = loadState(PART);
    if (before?.initialCurves === initialCurves) this.#runs = before.runs.map((run) => ({ ...run, curve: JSON.parse(run.text).curve }));
    this.#show();
  }

  // The runs whose logs were opened; `text` is what the server is asked about.
  get runs() {
    return this.#runs;
  }

  get #isFitted() {
    return this.#runs.length > 0 && !this.#fit?.fault;
  }

  // The cells of a curve in the table; none without a fit.
  cells(id) {
    if (!this.#isFitted) return [];
    const { loss, fault, low, high, difference } = this.#answers.get(id) ?? {};
    const cell = (figure, label, title, ...content) => element("td", { class: "number forecast", "data-figure": figure, "data-label": label, title }, ...content);
    return [
      loss === undefined ? cell("forecast", "Forecast", fault, muted(fault ? "no forecast" : "…"))
        : cell("forecast", "Forecast", interval(low, high), element("b", {}, loss.toFixed(3)), unseen(` ${interval(low, high)}`), muted(plusMinus(low, high))),
      difference ? cell("difference", "Difference", differenceText(difference), ...differenceParts(difference)) : cell("difference", "Difference"),
    ];
  }

  // The best peak of a curve, {peak} or {fault}, from runs at several peaks; else undefined.
  best(id) {
    const { best, best_fault } = this.#answers.get(id) ?? {};
    return this.#isFitted ? best ?? (best_fault && { fault: best_fault }) : undefined;
  }

  #setRuns(runs) {
    this.#runs = runs;
    this.#fit = null;
    this.#answers.clear();
    saveState({ initialCurves: this.#initialCurves, runs: runs.map(({ curve, ...run }) => run) }, PART);  // the text has it
    this.#show();
    this.#page.compare();
  }

  // Show the server's answer about the present runs, if there are any.
  show({ fit = null, forecasts, forecast_note }) {
    this.#fit = fit;
    this.#answers = forecasts;
    this.#show(forecast_note);
  }

  // Nodes that say what some more runs forecast, and why not; again() is called after an offer was taken.
  async #judge(runs, again) {
    const { fit, forecasts } = await this.#page.ask([...this.#runs, ...runs].map(({ text }) => text));
    const curves = this.#page.entries().map(({ id }) => forecasts.get(id));
    const count = curves.filter((forecast) => forecast && !forecast.fault).length;
    const many = count === curves.length ? "Every curve" : count ? `${count} of the ${curves.length} curves` : "No curve";
    return [
      fit.fault ? element("p", { class: "fault" }, `No forecast: ${sentence(fit.fault)}`)
        : element("p", { class: count ? null : "fault" }, `${many} on this page can be forecast.`),
      ...runs.map((run) => element("div", { class: "actions" }, runs.length > 1 ? element("span", { class: "muted" }, run.name) : null, ...this.#offers(run, again))),
      element("ul", { class: "advice notes" }, ...this.#notes(fit, forecasts)),
    ];
  }

  // Buttons that make the page's curves like a run's.
  #offers(run, again = () => {}) {
    const entries = this.#page.entries();
    const button = (text, act, problem = null) => element("button", {
      type: "button", "data-key": `runs/${run.name}/${text}`, disabled: problem !== null, title: problem, click: () => {
        act();
        again();
      },
    }, text);
    const runPeak = Number(run.peak.toPrecision(7));  // logs have 0.0010000000474974513
    const offers = [];
    const largest = Number((run.largest_lr ?? run.peak).toPrecision(7));
    const differs = (entry) => {
      const multiplier = this.#page.largest(entry);
      return multiplier > 0 && Math.abs(this.#page.question(entry).peak * multiplier / largest - 1) > SAME_PEAK;
    };
    if (entries.some(differs)) {
      offers.push(button(`Use its peak, ${formatLearningRate(largest)}`, () => this.#page.useLargest(largest)));
    }
    if (!entries.some((entry) => JSON.stringify(this.#page.question(entry).curve) === JSON.stringify(run.curve))) {
      const problem = this.#page.isFull() ? "The page has no room for another curve."
        : run.curve.stages?.length > MAX_STAGES ? `It has ${run.curve.stages.length} stages, too many to edit.` : null;
      offers.push(button("Add this run's curve", () => this.#page.addCurve(run.name.replace(/\.\w+$/, ""), run.curve, runPeak), problem));
      if (problem) offers.push(element("span", { class: "muted" }, problem));
    }
    return offers;
  }

  // Items about the fit and the curves: warnings, best peaks, and why a forecast is missing or less certain.
  #notes(fit, answers) {
    const names = new Map();  // of the curves that each note is about
    const notes = [...(fit.advice ?? []), ...(fit.best_fault ? [`No best peaks: ${sentence(fit.best_fault)}`] : [])];
    const items = notes.map((note) => element("li", {}, note));
    for (const { id, name } of this.#page.entries()) {
      const { fault, reasons = [], best, best_fault } = answers.get(id) ?? {};
      const about = [
        fault && `no forecast, as ${sentence(fault)}`,
        reasons.length && `less certain, as ${reasons.join(", and ")}.`,
        best_fault && `no best peak, as ${sentence(best_fault)}`,
      ];
      for (const note of about.filter(Boolean)) names.set(note, [...(names.get(note) ?? []), name]);
      if (best) items.push(element("li", { class: "muted" }, `${name}: best peak ${best.text}.${best.reasons.length ? ` Less certain, as ${best.reasons.join(", and ")}.` : ""}`));
    }
    return [...items, ...[...names].map(([note, about]) => element("li", {}, `${about.join(", ")}: ${note}`))];
  }

  #show(note = byId("forecast-note").textContent) {
    const count = this.#runs.length, fault = this.#fit?.fault;
    for (const head of document.querySelectorAll(".forecast-head, #trust")) head.hidden = !this.#isFitted;
    for (const part of document.querySelectorAll(".fitted")) part.hidden = !this.#isFitted || !this.#fit;
    byId("forecast-fault").textContent = fault ? `No forecast: ${sentence(fault)}` : "";
    byId("forecast-note").textContent = this.#isFitted ? note : "";
    byId("forecast-hint").hidden = count > 0;
    byId("open-log").textContent = count ? "Open another log…" : "Open a log…";
    byId("forecast-notes").replaceChildren(
      ...this.#runs.flatMap(({ name, advice = [] }) => advice.map((text) => element("li", {}, text.startsWith(name) ? text : `${name}: ${text}`))),
      ...(count && this.#fit ? this.#notes(this.#fit, this.#answers) : []));
    this.#page.changed();
  }

  // Draw what also depends on the curves' names and looks: the picture of losses, and the runs with their offers.
  draw() {
    byId("runs").replaceChildren(...this.#runs.map((run) => this.#item(run)));
    if (!this.#isFitted || !this.#fit) return;
    const runs = this.#runs.map(({ name }, index) => ({ name, ...this.#fit.runs[index] })).filter(({ steps }) => steps);
    this.#picture.draw(runs, this.#page.visible().map(({ id, name, colour, isSelected }) => {
      const { loss, line, low, high } = this.#answers.get(id) ?? {};
      return { name, colour, isSelected, text: line ? `${loss.toFixed(3)} ${plusMinus(low, high)}` : "no forecast", ...line };
    }));
  }

  #item(run) {
    const [, , lr] = run.columns;
    const curve = run.curveName === null ? `the learning rates in ${lr}` : run.curveName;
    const remove = element("button", {
      type: "button", class: "plain", "aria-label": `Remove ${run.name}`, title: "Remove", "data-key": `runs/${run.name}/remove`, click: () => {
        this.#setRuns(this.#runs.filter((other) => other !== run));
        byId("open-log").focus();
      },
    }, "×");
    return element("li", {}, element("span", {}, element("b", {}, run.name),
      element("span", { class: "muted" }, ` ${describeRun(run)}; trained with ${curve}, peak ${formatLearningRate(run.peak)}`)),
    element("span", { class: "actions" }, ...this.#offers(run)), remove);
  }
}

const muted = (text) => element("span", { class: "muted" }, ` ${text}`);
const unseen = (text) => element("span", { class: "unseen" }, text);  // for screen readers; the tooltip says the same
const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}`;
const plusMinus = (low, high) => `± ${((high - low) / 2).toFixed(3)}`;
const interval = (low, high) => `${low.toFixed(3)} to ${high.toFixed(3)}`;
const differenceText = ({ difference, low, high }) => `${signed(difference)}, ${signed(low)} to ${signed(high)}`;

// A difference that may be 0 is not one to rank curves by: a remark stands in its place.
function differenceParts(difference) {
  if (difference.remark) return [unseen(`${differenceText(difference)}: `), element("span", { class: "muted" }, difference.remark)];
  const [value, range] = differenceText(difference).split(", ");
  return [element("b", {}, value), unseen(`, ${range}`), muted(plusMinus(difference.low, difference.high))];
}
