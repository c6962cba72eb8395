// The dialog that opens logs: it asks what a log leaves open, such as the curve of its run.

import { element, formatStep, sentence } from "./elements.js";
import { ask, latestOnly } from "./requests.js";

const COLUMNS = { step: "Column of steps", loss: "Column of losses", lr: "Column of learning rates" };
const UNITS = { updates: "updates", samples: "samples or tokens", epochs: "epochs, 1 after the first", "epochs from 0": "epochs, 0 after the first" };
const ADVICE = {
  curve: "Choose the curve that this run was trained with. If it is not in the list, add it to the table first.",
  peak_value: "Type the peak learning rate of this run.",
  step: "Choose the column of steps.", loss: "Choose its column.", lr: "Choose its column, or the curve of the run.",
  unit: "Choose what the steps are counted in, and type how many are in one update, or how many updates in an epoch.",
};

// What was read of a log.
export function describeRun({ count, lastStep, loss, columns: [step] }) {
  return `${count} logged losses (${loss} by ${step}), up to step ${formatStep(lastStep)}`;
}

export class LogDialog {
  maxBytes = Infinity;
  #dialog;
  #page;
  #logs = [];

  // page.entries() returns the curves that a run may have been trained with, page.question(entry) the curve and the
  // peak of one of them; page.settled() resolves once the server has described all curves; page.add(runs) takes the
  // runs that were opened, page.judge(runs, again) returns nodes that say what they forecast; page.openDropped(file)
  // opens a file that holds curves, and returns false for one that does not.
  constructor(dialog, page) {
    this.#dialog = dialog;
    this.#page = page;
    const files = this.#find("input[type=file]");
    files.addEventListener("change", () => this.#read(files.files));
    this.#find(".primary").addEventListener("click", () => {
      page.add(this.#logs.map((log) => log.run));
      dialog.close();
    });
    // A file that is dropped on the page would replace it.
    addEventListener("dragover", (event) => event.dataTransfer.types.includes("Files") && event.preventDefault());
    addEventListener("drop", async (event) => {
      let files = [...event.dataTransfer.files];
      if (!files.length || event.target.closest("input, textarea")) return;
      event.preventDefault();
      if (!document.querySelector("dialog[open]")) {
        const logs = [];
        for (const file of files) if (!await page.openDropped(file)) logs.push(file);
        if (logs.length) this.open();
        files = logs;
      }
      if (dialog.open) this.#read(files);
    });
  }

  open() {
    this.#dialog.querySelector("form").reset();
    this.#setLogs([]);
    this.#dialog.showModal();
  }

  #find(selector) {
    return this.#dialog.querySelector(selector);
  }

  async #read(files) {
    await this.#page.settled();
    const show = () => {
      this.#find(".primary").disabled = !this.#logs.length || this.#logs.some((log) => !log.run);
      this.#judge();
    };
    this.#setLogs([...files].map((file) => new OpenedLog(file, this.maxBytes, this.#page, show)));
  }

  // Say what the logs that were read so far forecast; again after an offer was taken.
  #judge = latestOnly(async () => {
    const logs = this.#logs, runs = logs.map(({ run }) => run).filter(Boolean);
    const again = () => {
      this.#find(".primary").focus();
      this.#judge();
    };
    if (runs.length) await this.#page.settled();
    const nodes = runs.length ? await this.#page.judge(runs, again) : [];
    if (logs === this.#logs) this.#find(".verdict").replaceChildren(...nodes);
  }, (error) => this.#find(".verdict").replaceChildren(element("p", { class: "fault" }, error.message)));

  #setLogs(logs) {
    this.#logs = logs;
    this.#find(".logs").replaceChildren(...logs.map((log) => log.fields));
    this.#find(".verdict").replaceChildren();
    this.#find(".primary").disabled = true;
    this.#find(".primary").textContent = logs.length > 1 ? "Use these logs" : "Use this log";
  }
}

// One file: its text, the choices of the user, and the run that the server reads from them.
class OpenedLog {
  run = null;
  #file;
  #page;
  #text;
  #changed;
  #columns = {};
  #curve;
  #peak;
  #peakField;
  #unit;
  #size;
  #sizeField;
  #choices = element("div");
  #result = element("p", { role: "status" });

  constructor(file, maxBytes, page, changed) {
    this.#file = file;
    this.#page = page;
    this.#changed = changed;
    this.#curve = element("select", { change: () => this.#chooseCurve() },
      element("option", { value: "" }, "the learning rates in the log"),
      ...page.entries().map(({ id, name }) => element("option", { value: id }, name)));
    this.#peak = element("input", { inputmode: "decimal", spellcheck: "false", input: () => this.#ask() });
    this.#peakField = element("label", { class: "field", hidden: true }, element("span", {}, "Peak learning rate"), this.#peak);
    this.#unit = element("select", { change: () => this.#chooseUnit() },
      ...Object.entries(UNITS).map(([value, text]) => element("option", { value }, text)));
    this.#size = element("input", { inputmode: "numeric", spellcheck: "false", input: () => this.#ask() });
    this.#sizeField = element("label", { class: "field", hidden: true }, element("span"), this.#size);
    this.fields = element("fieldset", { "aria-label": file.name }, element("legend", {}, file.name),
      element("label", { class: "field" }, element("span", {}, "Trained with"), this.#curve), this.#peakField,
      element("label", { class: "field" }, element("span", {}, "Steps are counted in"), this.#unit), this.#sizeField, this.#choices, this.#result);
    this.#read(maxBytes);
  }

  async #read(maxBytes) {
    if (this.#file.size > maxBytes) {
      return this.#show({ fault: `${this.#file.name} has ${Math.ceil(this.#file.size / 2 ** 20)} MB, and a log may have ${maxBytes / 2 ** 20} MB. Log the loss less often, or leave columns out` });
    }
    try {
      this.#text = new TextDecoder("utf-8", { fatal: true }).decode(await this.#file.arrayBuffer());
    } catch {
      return this.#show({ fault: `${this.#file.name} is not a text file in UTF-8` });
    }
    this.#ask();
  }

  #entry() {
    return this.#page.entries().find(({ id }) => String(id) === this.#curve.value);
  }

  #chooseCurve() {
    const entry = this.#entry();
    this.#peakField.hidden = !entry;
    if (entry) this.#peak.value = this.#page.question(entry).peak;
    this.#ask();
  }

  #chooseUnit() {
    this.#sizeField.hidden = this.#unit.value === "updates";
    this.#sizeField.firstChild.textContent = this.#unit.value === "samples" ? "Samples or tokens per update" : "Updates per epoch";
    this.#ask();
  }

  #ask = latestOnly(async () => {
    if (this.#text === undefined) return;
    this.#show({ fault: "" });
    this.#result.className = "muted";
    this.#result.append("Reading…");
    const entry = this.#entry();
    const typed = this.#peak.value.trim();
    const answer = await ask("/log", {
      name: this.#file.name, text: this.#text, columns: this.#columns,
      curve: entry ? this.#page.question(entry).curve : null,
      peak: entry && typed ? (Number.isNaN(Number(typed)) ? typed : Number(typed)) : null,
      unit: { name: this.#unit.value, size: Number(this.#size.value.replace(/[\s\u202f_]/g, "")) },
    });
    if (COLUMNS[answer.argument]) this.#addChoice(answer.argument, answer.columns);
    this.#show(answer, entry?.name ?? null);
  }, (error) => this.#show({ fault: error.message }));

  #addChoice(argument, columns) {
    const select = element("select", { "data-argument": argument, change: () => {
      this.#columns[argument] = select.value || undefined;
      this.#ask();
    } }, element("option", { value: "" }, "choose…"), ...columns.map((column) => element("option", {}, column)));
    this.#choices.querySelector(`[data-argument=${argument}]`)?.parentElement.remove();
    this.#choices.append(element("label", { class: "field" }, element("span", {}, COLUMNS[argument]), select));
  }

  #show({ run: text = null, largest_lr, loss, columns, advice = [], fault, argument }, curveName = null) {
    const { name, curve, peak, steps } = JSON.parse(text) ?? {};
    this.run = text && { name, curve, peak, text, count: steps.length, lastStep: steps.at(-1), largest_lr, loss, columns, advice, curveName };
    this.#result.className = text ? "muted" : "fault";
    this.#result.replaceChildren(...(text
      ? [`${describeRun(this.run)}${columns[2] ? `; learning rates from ${columns[2]}` : ""}.`, ...advice.map((text) => element("span", { class: "advice" }, ` ${text}`))]
      : [fault && `${sentence(fault)} ${ADVICE[argument] ?? ""}`]));
    this.#changed();
  }
}
