// Forecasts of the loss: the runs whose logs the user opened, the fits of the law to them, and their forecasts.

import { byId, element, formatLearningRate, sentence } from "./elements.js";
import { LogDialog, describeRun } from "./logs.js";
import { LossPicture } from "./losses.js";
import { keepState, loadState } from "./saved.js";

const MAX_STAGES = 400;  // of a curve that can be edited
const SAME_PEAK = 0.01;  // relative difference of peaks that is not worth a button

export class Forecasts {
  #page;
  #runs = [];
  #fit = null;  // the server's answer about the present runs, or a fault
  #answers = new Map();  // a forecast, or a fault, by the curve's id
  #picture = new LossPicture();
  dialog;

  // page.entries() returns the valid curves, page.visible() those on the picture, page.question(entry) the curve and
  // the peak of one of them. page.compare() asks the server about the present runs and calls `show`. page.settled()
  // resolves once the server has described all curves, page.changed() is called when there is something new to show.
  // page.largest(entry) returns a curve's largest multiplier, page.useLargest(lr) gives all curves a largest learning
  // rate, page.addCurve(name, curve, peak) adds one, page.isFull() says that there is no room for one.
  constructor(page) {
    this.#page = page;
    this.dialog = new LogDialog({ ...page, add: (runs) => this.#setRuns([...this.#runs, ...runs]) });
    byId("open-log").addEventListener("click", () => this.dialog.open());
  }

  // Begin with the runs that this tab had before a reload.
  start(initialCurves, maxLogBytes) {
    this.dialog.maxBytes = maxLogBytes;
    const before = loadState("logs");
    if (before?.initialCurves === initialCurves) this.#runs = before.runs.map((run) => ({ ...run, curve: JSON.parse(run.text).curve }));
    keepState("logs", () => ({ initialCurves, runs: this.#runs.map(({ curve, ...run }) => run) }));  // the text has it
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
    const forecast = loss === undefined ? cell("forecast", "Forecast", fault, muted(fault ? "no forecast" : "…"))
      : cell("forecast", "Forecast", `${low.toFixed(3)} to ${high.toFixed(3)}`, element("b", {}, loss.toFixed(3)), muted(plusMinus(low, high)));
    if (!difference) return [forecast, cell("difference", "Difference")];
    const values = ["difference", "low", "high"].map((name) => `${difference[name] < 0 ? "−" : "+"}${Math.abs(difference[name]).toFixed(3)}`);
    // A difference that may be 0 is not one to rank curves by: a remark stands in its place.
    return [forecast, cell("difference", "Difference", `${values[0]}, ${values[1]} to ${values[2]}`, ...(difference.remark
      ? [muted(difference.remark)] : [element("b", {}, values[0]), muted(plusMinus(difference.low, difference.high))]))];
  }

  #setRuns(runs) {
    this.#runs = runs;
    this.#fit = null;
    this.#answers.clear();
    this.#show();
    this.#page.compare();
  }

  // Show the server's answer about the present runs, if there are any.
  show({ fit = null, forecasts, forecast_note }) {
    this.#fit = fit;
    this.#answers = forecasts;
    this.#show(forecast_note);
  }

  // Buttons that make the page's curves like a run's.
  #offers(run) {
    const entries = this.#page.entries();
    const button = (text, click, problem = null) => element("button", { type: "button", "data-key": `runs/${run.name}/${text}`, disabled: problem !== null, title: problem, click }, text);
    const rounded = (peak) => Number(peak.toPrecision(7));  // logs have 0.0010000000474974513
    const offers = [];
    const largest = rounded(run.largest_lr);
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
      offers.push(button("Add this run's curve", () => this.#page.addCurve(run.name.replace(/\.\w+$/, ""), run.curve, rounded(run.peak)), problem));
      if (problem) offers.push(muted(problem));
    }
    return offers;
  }

  // Items about the fit and the curves: warnings, and why a forecast is missing or less certain.
  #notes() {
    const { advice = [] } = this.#fit;
    const names = new Map();  // of the curves that each note is about
    const items = advice.map((note) => element("li", {}, note));
    for (const { id, name } of this.#page.entries()) {
      const { fault, reasons = [] } = this.#answers.get(id) ?? {};
      const notes = [
        fault && `no forecast, as ${sentence(fault)}`,
        reasons.length && `less certain, as ${reasons.join(", and ")}.`,
      ];
      for (const note of notes.filter(Boolean)) names.set(note, [...(names.get(note) ?? []), name]);
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
      ...this.#runs.flatMap(({ name, advice }) => advice.map((text) => element("li", {}, text.startsWith(name) ? text : `${name}: ${text}`))),
      ...(count && this.#fit ? this.#notes() : []));
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
    const remove = element("button", {
      type: "button", class: "plain", "aria-label": `Remove ${run.name}`, title: "Remove", "data-key": `runs/${run.name}/remove`, click: () => {
        this.#setRuns(this.#runs.filter((other) => other !== run));
        byId("open-log").focus();
      },
    }, "×");
    const trained = run.curveName === null ? "" : `; trained with ${run.curveName}`;  // else with its learning rates
    const description = `${describeRun(run)}${trained}, peak ${formatLearningRate(run.peak)}`;
    return element("li", {}, element("span", {}, element("b", {}, run.name), muted(description)),
      element("span", { class: "actions" }, ...this.#offers(run)), remove);
  }
}

const muted = (text) => element("span", { class: "muted" }, ` ${text}`);
const plusMinus = (low, high) => `± ${((high - low) / 2).toFixed(3)}`;
