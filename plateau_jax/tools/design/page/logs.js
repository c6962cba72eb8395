// The dialog that opens logs: it asks what a log leaves open, such as the curve of its run.

import { validPart } from "./descriptions.js";
import { byId, element, formatStep, sentence } from "./elements.js";
import { ask, latestOnly } from "./requests.js";

const ADVICE = {
  curve:
    "Choose the curve that this run was trained with. If it is not in the list, add it to the table first.",
  step: "Choose the column of steps.",
  loss: "Choose the column of losses.",
  lr: "Choose the curve that this run was trained with, or the column of learning rates.",
};

// What was read of a log.
export function describeRun({ count, lastStep, curveName }) {
  const source = curveName ? `trained with ${curveName}` : "with its learning rates";
  return `${count} logged losses, up to step ${formatStep(lastStep)}, ${source}`;
}

export class LogDialog {
  maxBytes = Infinity;
  #dialog = byId("opening-log");
  #accept = this.#dialog.querySelector(".primary");
  #page;
  #logs = [];

  // page.entries() returns the curves that a run may have been trained with; page.settled() resolves
  // once the server has described all curves; page.add(runs) takes the runs that were opened.
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
    const changed = () => this.#showButton();
    this.#logs = files.map((file) => new OpenedLog(file, this.maxBytes, this.#page, changed));
    this.#dialog.querySelector(".logs").replaceChildren(...this.#logs.map(({ fields }) => fields));
    this.#accept.textContent = files.length > 1 ? "Use these logs" : "Use this log";
    this.#showButton();
  }

  #showButton() {
    this.#accept.disabled = !this.#logs.length || this.#logs.some(({ run }) => !run);
  }
}

function runOf({ run, largest_lr, advice }, curveName) {
  const { name, peak, steps } = JSON.parse(run);
  return {
    name,
    text: run,
    curveName,
    advice,
    peak,
    count: steps.length,
    lastStep: steps.at(-1),
    largestLr: largest_lr,
  };
}

function inBase64(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result.split(",")[1] ?? ""));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}

// One file: its content in base64, the choices of the user, and the run that the server reads from them.
class OpenedLog {
  run = null;
  fields = byId("log-fields").content.firstElementChild.cloneNode(true);
  #file;
  #page;
  #content;
  #changed;

  constructor(file, maxBytes, page, changed) {
    this.#file = file;
    this.#page = page;
    this.#changed = changed;
    this.fields.setAttribute("aria-label", file.name);
    this.fields.querySelector("legend").textContent = file.name;
    const options = page.entries().map(({ id, name }) => element("option", { value: id }, name));
    this.#field("curve").append(...options);
    this.fields.addEventListener("input", () => this.#ask());
    this.#read(maxBytes);
  }

  #field(name) {
    return this.fields.elements[name];
  }

  async #read(maxBytes) {
    const { name, size } = this.#file;
    if (size > maxBytes) {
      const sizes = `${Math.ceil(size / 2 ** 20)} MB, and a log may have ${maxBytes / 2 ** 20} MB`;
      return this.#showFault(`${name} has ${sizes}. Log the loss less often, or leave columns out`);
    }
    try {
      this.#content = await inBase64(this.#file);
    } catch (error) {
      return this.#showFault(`${name} cannot be read: ${error.message}`);
    }
    this.#ask();
  }

  #ask = latestOnly(async () => {
    if (this.#content === undefined) return;
    this.#show(null, "Reading…");
    const entry = this.#page.entries().find(({ id }) => String(id) === this.#choice("curve"));
    const answer = await ask("/log", this.#question(entry));
    if (answer.fault) this.#askFor(answer);
    else this.#show(runOf(answer, entry?.name));
  }, (error) => this.#showFault(error.message));

  #choice(name) {
    return this.#field(name).value || null;
  }

  #question(entry) {
    const { curve, peak } = entry ? validPart(entry) : { curve: null, peak: null };
    const columns = {
      step: this.#choice("step"),
      loss: this.#choice("loss"),
      lr: this.#choice("lr"),
    };
    return { name: this.#file.name, content: this.#content, columns, curve, peak };
  }

  // Show what is wrong, and the columns to choose from.
  #askFor({ fault, argument, columns }) {
    if (columns.length) {
      const select = this.#field(argument);
      const options = columns.map((column) => element("option", {}, column));
      select.replaceChildren(select.options[0], ...options);
      select.parentElement.hidden = false;
    }
    this.#showFault(fault, ADVICE[argument]);
  }

  #showFault(fault, advice = "") {
    this.#show(null, `${sentence(fault)} ${advice}`, "fault");
  }

  #show(run, text = "", look = "muted") {
    this.run = run;
    const result = this.fields.querySelector("[role=status]");
    result.className = look;
    result.replaceChildren(run ? `${describeRun(run)}.` : text);
    for (const advice of run?.advice ?? []) result.append(element("span", { class: "advice" }, ` ${advice}`));
    this.#changed();
  }
}
