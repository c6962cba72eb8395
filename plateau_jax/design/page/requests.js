// Requests to the server. Every value on this page is computed there, by the Python package.

// The error of ask if the server does not answer.
export class Unanswered extends Error {
  message = `The server does not answer, so what has a dashed border may be old. Start the server again with the same command, on port ${location.port || 80}: this tab keeps your curves and continues by itself.`;
}

export async function ask(path, question) {
  countRequests(1);
  try {
    const request = question === undefined ? {} : {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(question),
    };
    const [response, answer] = await fetch(path, request)
      .then(async (response) => [response, await response.json()])
      .catch(() => { throw new Unanswered(); });
    if (!response.ok) throw new Error(answer.error);
    return answer;
  } finally {
    countRequests(-1);
  }
}

// Wrap an async function so that it never runs twice at once. Of the calls made during a run, only the last is
// kept, so that no old answer overwrites a newer one. The returned promise resolves once nothing is left to run.
export function latestOnly(run, onError) {
  let current = null;
  let pending = null;
  const runAll = async () => {
    countRequests(1);
    while (pending) {
      const values = pending;
      pending = null;
      try {
        await run(...values);
      } catch (error) {
        onError(error);
      }
    }
    current = null;
    countRequests(-1);
  };
  return (...values) => {
    pending = values;
    return (current ??= runAll());
  };
}

let running = 0;

function countRequests(change) {
  running += change;
  document.querySelector("main").setAttribute("aria-busy", String(running > 0));
}
