// Questions to the server. All values on this page are the answers of the Python package.

export async function ask(path, question) {
  busy(1);
  try {
    const answered = await fetch(path, question === undefined ? {} : {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(question),
    });
    const answer = await answered.json();
    if (!answered.ok) throw new Error(answer.error);
    return answer;
  } finally {
    busy(-1);
  }
}

let running = 0;

// A function that does `work`, never twice at a time. Of the calls that come meanwhile only the last counts,
// so that no answer comes late. What it returns is resolved when nothing is left to do.
export function latest(work, failed) {
  let running = null;
  let next = null;
  const run = async () => {
    busy(1);
    while (next) {
      const now = next;
      next = null;
      try {
        await work(...now);
      } catch (error) {
        failed(error);
      }
    }
    running = null;
    busy(-1);
  };
  return (...values) => {
    next = values;
    return (running ??= run());
  };
}

function busy(change) {
  running += change;
  document.querySelector("main").setAttribute("aria-busy", String(running > 0));
}
