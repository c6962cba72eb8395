// Forecasts of the loss: the runs whose logs the user opened, the fit of the law to them, and its forecasts.

import { byId, element, formatLearningRate, formatStep } from "./elements.js";
import { LogDialog } from "./logs.js";
import { ask, latestOnly } from "./requests.js";
import { loadState, saveState } from "./saved.js";

const PART = "runs";  // of the saved state

export class Forecasts {
  #page;
  #runs = [];
  #initialCurves;
  #fit = null;  // the server's key of the present fit
  #fault = "";  // of the fit
  #answers = new Map();  // a forecast, or a fault, by the curve's id
  #dialog;

  // page.entries() returns the valid curves, page.question(entry) what the server is asked about one of them,
  // page.settled() resolves once it has described all curves, page.changed() is called when there is something new to
  // show.
  constructor(page, onError) {
    this.#page = page;
    this.#dialog = new LogDialog(byId("opening-log"), { ...page, add: (runs) => this.#setRuns([...this.#runs, ...runs]) });
    this.update = latestOnly(() => this.#ask(), onError);
    byId("open-log").addEventListener("click", () => this.#dialog.open());
  }

  // Begin with the runs that this tab had before a reload.
  start(initialCurves, maxLogBytes) {
    this.#dialog.maxBytes = maxLogBytes;
    this.#initialCurves = initialCurves;
    const before = loadState(PART);
    if (before?.initialCurves === initialCurves) this.#runs = before.runs;
    this.#show();
  }

  // The cell of a curve in the table; null without a log.
  cell(id) {
    if (!this.#runs.length || this.#fault) return null;
    const answer = this.#answers.get(id);
    const cell = (...content) => element("td", { class: "number forecast", "data-figure": "forecast", "data-label": "Forecast" }, ...content);
    if (!answer) return cell("…");
    if (answer.fault) return cell(element("span", { class: "muted", title: answer.fault }, "no forecast"));
    const { loss, low, high, difference } = answer;
    return cell(element("b", {}, loss.toFixed(3)), element("span", { class: "muted" }, ` ${low.toFixed(3)} to ${high.toFixed(3)}`),
      ...(difference ? differenceTexts(difference) : []).map((text) => element("div", { class: "muted" }, text)));
  }

  #setRuns(runs) {
    this.#runs = runs;
    this.#fit = null;
    this.#fault = "";
    this.#answers = new Map();
    saveState({ initialCurves: this.#initialCurves, runs }, PART);
    this.#show();
    this.update();
  }

  async #ask() {
    const runs = this.#runs;
    if (!runs.length || this.#fault) return;
    const entries = this.#page.entries();
    const forecast = () => ask("/forecast", { fit: this.#fit, curves: entries.map(this.#page.question) });
    let answer = this.#fit && await forecast();
    if (!answer || answer.forgotten) {  // there was no fit yet, or the server has been restarted
      const { fit, fault = "" } = await ask("/fit", { runs: runs.map(({ name, curve, peak, steps, losses }) => ({ name, curve, peak, steps, losses })) });
      if (runs !== this.#runs) return;  // another question follows
      this.#fit = fit ?? null;
      this.#fault = fault;
      answer = fault ? { forecasts: [], note: "" } : await forecast();
    }
    if (runs !== this.#runs) return;
    this.#answers = new Map(entries.map(({ id }, index) => [id, answer.forecasts[index]]));
    this.#show(answer.note);
  }

  #show(note = byId("forecast-note").textContent) {
    const count = this.#runs.length;
    byId("forecast-head").hidden = !count || this.#fault !== "";
    byId("forecast-fault").textContent = this.#fault && `No forecast: ${this.#fault}.`;
    byId("forecast-note").textContent = count && !this.#fault ? note : "";
    byId("forecast-hint").hidden = count > 0;
    byId("open-log").textContent = count ? "Open another log…" : "Open a log…";
    byId("runs").replaceChildren(...this.#runs.map((run) => this.#item(run)));
    const names = new Map();  // of the curves that each note is about
    for (const { id, name } of this.#page.entries()) {
      const { fault, reasons = [] } = this.#answers.get(id) ?? {};
      const note = fault ? `no forecast, as ${fault}.` : reasons.length ? `less certain, as ${reasons.join(", and ")}.` : null;
      if (note) names.set(note, [...(names.get(note) ?? []), name]);
    }
    byId("forecast-notes").replaceChildren(...[...names].map(([note, about]) => element("li", {}, `${about.join(", ")}: ${note}`)));
    this.#page.changed();
  }

  #item(run) {
    const [step, , lr] = run.columns;
    const curve = run.curveName === null ? `the learning rates in ${lr}` : run.curveName;
    const remove = element("button", {
      type: "button", class: "plain", "aria-label": `Remove ${run.name}`, title: "Remove", click: () => {
        this.#setRuns(this.#runs.filter((other) => other !== run));
        byId("open-log").focus();
      },
    }, "×");
    return element("li", {}, element("span", {}, element("b", {}, run.name),
      element("span", { class: "muted" }, ` ${run.steps.length} readings of ${run.loss} by ${step}, up to step ${formatStep(run.steps.at(-1))}; trained with ${curve}, peak ${formatLearningRate(run.peak)}`)), remove);
  }
}

function differenceTexts({ difference, low, high, is_told_apart }) {
  const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}`;
  return [`${signed(difference)}, ${signed(low)} to ${signed(high)}`, ...(is_told_apart ? [] : ["not told apart"])];
}
