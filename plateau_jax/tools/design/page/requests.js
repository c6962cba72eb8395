// Requests to the server. Every value on this page is computed there, by the Python package.

import { byId } from "./elements.js";

const RETRY = 2000;  // milliseconds
const NO_ANSWER = [
  "The server does not answer, so what has a dashed border may be old.",
  `Start the server again with the same command, on port ${location.port || 80}:`,
  "this tab keeps your curves and continues by itself.",
].join(" ");

// Show an error, above an open dialog's content if there is one.
export function showTrouble(/** @type {{ message: string }} */ { message }) {
  const trouble = byId("trouble");
  trouble.hidden = false;
  // Screen readers would announce an unchanged message again if it were set.
  if (trouble.textContent === message) return;
  trouble.textContent = message;
  const form = document.querySelector("dialog[open] form");
  if (form) form.prepend(trouble);
  else document.querySelector("header")?.after(trouble);
}

// Ask the server, again and again until it answers.
/** @param {string} path @param {object} [question] @returns {Promise<any>} */
export async function ask(path, question) {
  countRequests(1);
  try {
    let reply = await fetchReply(path, question);
    while (reply === null) {
      showTrouble({ message: NO_ANSWER });
      await new Promise((resolve) => setTimeout(resolve, RETRY));
      reply = await fetchReply(path, question);
    }
    if (!reply.isValid) throw new Error(reply.answer.error);
    if (byId("trouble").textContent === NO_ANSWER) byId("trouble").hidden = true;
    return reply.answer;
  } finally {
    countRequests(-1);
  }
}

// The server's reply; null if it does not answer, which the page's borders show.
/** @param {string} path @param {object} [question] */
async function fetchReply(path, question) {
  const headers = { "Content-Type": "application/json" };
  const request = question && { method: "POST", headers, body: JSON.stringify(question) };
  let reply = null;
  try {
    const response = await fetch(path, request);
    reply = { isValid: response.ok, answer: await response.json() };
  } catch {
    // Without a server there is no response, or only a part of one.
  }
  document.body.classList.toggle("offline", reply === null);
  return reply;
}

// Wrap an async function so that its errors are shown, and so that it never runs twice at once: the calls made during a run become one
// run after it, so that no old answer overwrites a newer one. The returned promise resolves once
// nothing is left to run.
/** @param {() => Promise<void>} run */
export function latestOnly(run) {
  /** @type {Promise<void> | null} */ let current = null;
  let isPending = false;
  const runAll = async () => {
    countRequests(1);
    while (isPending) {
      isPending = false;
      await run().catch(showTrouble);
    }
    current = null;
    countRequests(-1);
  };
  return () => {
    isPending = true;
    current ??= runAll();
    return current;
  };
}

let running = 0;

function countRequests(/** @type {number} */ change) {
  running += change;
  document.querySelector("main")?.setAttribute("aria-busy", String(running > 0));
}
