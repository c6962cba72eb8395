// The dialog that opens logs: it asks what a log leaves open, such as the curve of its run.

import { byId, element, formatStep, sentence } from "./elements.js";
import { ask, latestOnly } from "./requests.js";

const ADVICE = {
  curve: "Choose the curve that this run was trained with. If it is not in the list, add it to the table first.",
  peak_value: "Type the peak learning rate of this run.",
  step: "Choose the column of steps.", loss: "Choose its column.", lr: "Choose its column, or the curve of the run.",
  unit: "Choose what the steps are counted in, and type how many are in one update, or how many updates in an epoch.",
};

// What was read of a log.
export function describeRun({ count, lastStep, loss, columns: [step, , lr] }) {
  return `${count} logged losses (${loss} by ${step}), up to step ${formatStep(lastStep)}${lr ? `; learning rates from ${lr}` : ""}`;
}

export class LogDialog {
  maxBytes = Infinity;
  #dialog = byId("opening-log");
  #accept = this.#dialog.querySelector(".primary");
  #page;
  #logs = [];

  // page.entries() returns the curves that a run may have been trained with, page.question(entry) the curve and the
  // peak of one of them; page.settled() resolves once the server has described all curves; page.add(runs) takes the
  // runs that were opened.
  constructor(page) {
    this.#page = page;
    const files = this.#dialog.querySelector("[type=file]");
    files.addEventListener("change", () => this.#read([...files.files]));
    this.#accept.addEventListener("click", () => {
      page.add(this.#logs.map(({ run }) => run));
      this.#dialog.close();
    });
  }

  // Open the dialog, with files that were dropped on the page.
  open(files = []) {
    this.#dialog.querySelector("form").reset();
    this.#dialog.showModal();
    return this.#read(files);
  }

  async #read(files) {
    await this.#page.settled();
    const showButton = () => (this.#accept.disabled = !this.#logs.length || this.#logs.some(({ run }) => !run));
    this.#logs = files.map((file) => new OpenedLog(file, this.maxBytes, this.#page, showButton));
    this.#dialog.querySelector(".logs").replaceChildren(...this.#logs.map(({ fields }) => fields));
    this.#accept.textContent = files.length > 1 ? "Use these logs" : "Use this log";
    showButton();
  }
}

// One file: its text, the choices of the user, and the run that the server reads from them.
class OpenedLog {
  run = null;
  fields = byId("log-fields").content.firstElementChild.cloneNode(true);
  #file;
  #page;
  #text;
  #changed;

  constructor(file, maxBytes, page, changed) {
    this.#file = file;
    this.#page = page;
    this.#changed = changed;
    this.fields.setAttribute("aria-label", file.name);
    this.fields.querySelector("legend").textContent = file.name;
    this.#field("curve").append(...page.entries().map(({ id, name }) => element("option", { value: id }, name)));
    this.fields.addEventListener("input", ({ target }) => this.#update(target));
    this.#read(maxBytes);
  }

  #field(name) {
    return this.fields.elements[name];
  }

  async #read(maxBytes) {
    const { name, size } = this.#file;
    if (size > maxBytes) {
      return this.#show({ fault: `${name} has ${Math.ceil(size / 2 ** 20)} MB, and a log may have ${maxBytes / 2 ** 20} MB. Log the loss less often, or leave columns out` });
    }
    try {
      this.#text = new TextDecoder("utf-8", { fatal: true }).decode(await this.#file.arrayBuffer());
    } catch {
      return this.#show({ fault: `${name} is not a text file in UTF-8` });
    }
    this.#ask();
  }

  #update(field) {
    const entry = this.#entry(), unit = this.#field("unit").value;
    if (field.name === "curve" && entry) this.#field("peak").value = this.#page.question(entry).peak;
    this.#field("peak").parentElement.hidden = !entry;
    this.#field("size").parentElement.hidden = unit === "updates";
    this.#field("size").previousElementSibling.textContent = unit === "samples" ? "Samples or tokens per update" : "Updates per epoch";
    this.#ask();
  }

  #entry() {
    return this.#page.entries().find(({ id }) => String(id) === this.#field("curve").value);
  }

  #ask = latestOnly(async () => {
    if (this.#text === undefined) return;
    this.#show({ fault: "Reading…" });
    const entry = this.#entry();
    const { peak, unit, size, step, loss, lr } = Object.fromEntries([...this.fields.elements].map(({ name, value }) => [name, value.trim() || null]));
    const answer = await ask("/log", {
      name: this.#file.name, text: this.#text, columns: { step, loss, lr }, unit: { name: unit, size: Number(size) },
      curve: entry ? this.#page.question(entry).curve : null, peak: entry ? peak : null,
    });
    if (answer.fault && answer.columns.length) this.#offerColumns(this.#field(answer.argument), answer.columns);
    this.#show(answer, entry?.name ?? null);
  }, (error) => this.#show({ fault: error.message }));

  #offerColumns(select, columns) {
    select.replaceChildren(select.options[0], ...columns.map((column) => element("option", {}, column)));
    select.parentElement.hidden = false;
  }

  #show({ run: text = null, fault, argument, ...answer }, curveName = null) {
    const { name, curve, peak, steps } = JSON.parse(text) ?? {};
    this.run = text && { name, curve, peak, text, count: steps.length, lastStep: steps.at(-1), curveName, ...answer };
    const result = this.fields.querySelector("[role=status]");
    result.className = text || fault === "Reading…" ? "muted" : "fault";
    result.replaceChildren(...(text ? [`${describeRun(this.run)}.`, ...answer.advice.map((text) => element("span", { class: "advice" }, ` ${text}`))]
      : [`${sentence(fault)} ${ADVICE[argument] ?? ""}`]));
    this.#changed();
  }
}
