// Forecasts of the loss: the runs whose logs the user opened, the fit of the law to them, and its
// forecasts.

import { byId, element, formatLearningRate, sentence } from "./elements.js";
import { largestOf, validPart } from "./descriptions.js";
import { keepState, loadState } from "./history.js";
import { LogDialog, describeRun } from "./logs.js";
import { LossPicture } from "./losses.js";

const SAME_PEAK = 0.01;  // relative difference of peaks that is not worth a button

export class Forecasts {
  #page;
  #runs = [];
  #fit = null;  // the server's answer about the present runs, or a fault
  #answers = new Map();  // a forecast, or a fault, by the curve's id
  #picture = new LossPicture();
  dialog;

  // page.entries() returns the valid curves, page.visible() those on the picture. page.compare()
  // asks the server about the present runs and calls `show`. page.settled() resolves once the server
  // has described all curves, page.changed() is called when there is something new to show.
  // page.useLargest(lr) gives all curves a largest learning rate.
  constructor(page) {
    this.#page = page;
    const add = (runs) => this.#setRuns([...this.#runs, ...runs]);
    this.dialog = new LogDialog({ ...page, add });
    byId("open-log").addEventListener("click", () => this.dialog.open());
  }

  // Begin with the runs that this tab had before a reload.
  start(initialCurves, maxLogBytes) {
    this.dialog.maxBytes = maxLogBytes;
    const before = loadState("logs");
    if (before?.initialCurves === initialCurves) this.#runs = before.runs;
    keepState("logs", () => ({ initialCurves, runs: this.#runs }));
    this.#show();
  }

  // The runs whose logs were opened; `text` is what the server is asked about.
  get runs() {
    return this.#runs;
  }

  #setRuns(runs) {
    this.#runs = runs;
    this.#fit = null;
    this.#answers.clear();
    this.#show();
    this.#page.compare();
  }

  // True if a fit is there, or awaited.
  get #isFitted() {
    return this.#runs.length > 0 && !this.#fit?.fault;
  }

  // The cells of a curve in the table; none without a fit.
  cells(id) {
    if (!this.#isFitted) return [];
    const answer = this.#answers.get(id) ?? {};
    return [forecastCell(answer), differenceCell(answer.difference)];
  }

  // Show the server's answer about the present runs, if there are any.
  show({ fit = null, forecasts, forecast_note }) {
    this.#fit = fit;
    this.#answers = forecasts;
    byId("forecast-note").textContent = this.#isFitted ? forecast_note : "";
    this.#show();
  }

  #show() {
    for (const node of document.querySelectorAll(".forecast-head, #trust")) node.hidden = !this.#isFitted;
    for (const node of document.querySelectorAll(".fitted")) node.hidden = !this.#isFitted || !this.#fit;
    const fault = this.#fit?.fault;
    byId("forecast-fault").textContent = fault ? `No forecast: ${sentence(fault)}` : "";
    this.#showOpenButton();
    byId("forecast-notes").replaceChildren(...this.#notes().map((note) => element("li", {}, note)));
    this.#page.changed();
  }

  #showOpenButton() {
    const isOpen = this.#runs.length > 0;
    byId("forecast-hint").hidden = isOpen;
    byId("open-log").textContent = isOpen ? "Open another log…" : "Open a log…";
  }

  // Warnings about the logs and the fit, and why a forecast is missing or less certain.
  #notes() {
    const aboutLogs = this.#runs.flatMap(adviceAbout);
    if (!this.#fit) return aboutLogs;
    return [...aboutLogs, ...(this.#fit.advice ?? []), ...this.#notesAboutCurves()];
  }

  // Curves with the same note share a line.
  #notesAboutCurves() {
    const namesByNote = new Map();
    for (const { id, name } of this.#page.entries()) {
      for (const note of notesAbout(this.#answers.get(id) ?? {})) {
        const names = namesByNote.get(note) ?? [];
        namesByNote.set(note, [...names, name]);
      }
    }
    return [...namesByNote].map(([note, names]) => `${names.join(", ")}: ${note}`);
  }

  // Draw what also depends on the curves' names and looks: the picture of losses, and the runs with
  // their offers.
  draw() {
    byId("runs").replaceChildren(...this.#runs.map((run) => this.#item(run)));
    if (!this.#isFitted || !this.#fit) return;
    const lines = this.#page.visible().map((entry) => lineOf(entry, this.#answers.get(entry.id) ?? {}));
    this.#picture.draw(this.#fit.runs, lines);
  }

  #item(run) {
    const description = `${describeRun(run)}, peak ${formatLearningRate(run.peak)}`;
    return element("li", {},
      element("span", {}, element("b", {}, run.name), muted(description)),
      element("span", { class: "actions" }, ...this.#offers(run)),
      this.#removeButton(run));
  }

  #removeButton(run) {
    const remove = () => {
      this.#setRuns(this.#runs.filter((other) => other !== run));
      byId("open-log").focus();
    };
    return element("button", {
      type: "button",
      class: "plain",
      "aria-label": `Remove ${run.name}`,
      title: "Remove",
      "data-key": `runs/${run.name}/remove`,
      click: remove,
    }, "×");
  }

  // A button that gives the page's curves the run's peak, if theirs differ.
  #offers(run) {
    const largest = Number(run.largestLr.toPrecision(7));  // logs have 0.0010000000474974513
    const differs = this.#page.entries().some((entry) => this.#hasOtherPeak(entry, largest));
    if (!differs) return [];
    const properties = {
      type: "button",
      "data-key": `runs/${run.name}/peak`,
      click: () => this.#page.useLargest(largest),
    };
    return [element("button", properties, `Use its peak, ${formatLearningRate(largest)}`)];
  }

  #hasOtherPeak(entry, largest) {
    const multiplier = largestOf(entry);
    if (multiplier <= 0) return false;  // no peak changes a curve of zeros
    const ownLargest = validPart(entry).peak * multiplier;
    return Math.abs(ownLargest / largest - 1) > SAME_PEAK;
  }
}

const muted = (text) => element("span", { class: "muted" }, ` ${text}`);
const signed = (number) => `${number < 0 ? "−" : "+"}${Math.abs(number).toFixed(3)}`;

// The interval is null if nothing is known about it.
const plusMinus = (low, high) => (low === null ? "± ?" : `± ${((high - low) / 2).toFixed(3)}`);

function forecastCell({ loss, low, high, fault }) {
  const properties = { class: "number forecast", "data-figure": "forecast", "data-label": "Forecast" };
  if (fault) return element("td", { ...properties, title: fault }, muted("no forecast"));
  if (loss === undefined) return element("td", properties, muted("…"));
  if (low !== null) properties.title = `${low.toFixed(3)} to ${high.toFixed(3)}`;
  return element("td", properties, element("b", {}, loss.toFixed(3)), muted(plusMinus(low, high)));
}

function differenceCell(answer) {
  const properties = { class: "number forecast", "data-figure": "difference", "data-label": "Difference" };
  if (!answer) return element("td", properties);
  const { difference, low, high, remark } = answer;
  if (low !== null) properties.title = `${signed(difference)}, ${signed(low)} to ${signed(high)}`;
  // A difference that may be 0 is not one to rank curves by: a remark stands in its place.
  if (remark) return element("td", properties, muted(remark));
  return element("td", properties, element("b", {}, signed(difference)), muted(plusMinus(low, high)));
}

function notesAbout({ fault, reasons = [] }) {
  if (fault) return [`no forecast, as ${sentence(fault)}`];
  if (reasons.length) return [`less certain, as ${reasons.join(", and ")}.`];
  return [];
}

const adviceAbout = ({ name, advice }) =>
  advice.map((text) => (text.startsWith(`${name}: `) ? text : `${name}: ${text}`));

function lineOf({ name, colour, isSelected }, { loss, line, low, high }) {
  const text = line ? `${loss.toFixed(3)} ${plusMinus(low, high)}` : "no forecast";
  return { name, colour, isSelected, text, ...line };
}
