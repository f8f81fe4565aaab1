// Everything that the page asks of the server.

import { Exact } from "./format.js";

const KEY = "changefeed.token";

/** Kept for this tab only, and sent to nobody but the server that the page came from. */
export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (text) => sessionStorage.setItem(KEY, text),
  forget: () => sessionStorage.removeItem(KEY),
};

/** What went wrong, in one sentence, and what to do next. */
export class Problem extends Error {
  constructor(status, detail, advice) {
    super(detail);
    this.status = status;
    this.advice = advice;
  }
}

function headers(more) {
  const known = token.get();
  return known ? { ...more, authorization: `Bearer ${known}` } : more;
}

async function send(path, options) {
  let answer;
  try {
    answer = await fetch(path, { ...options, cache: "no-store", credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The server cannot be reached.", "Is `changefeed serve` still running?");
  }
  if (answer.ok) return answer;
  const problem = await answer.json().catch(() => ({}));
  throw new Problem(answer.status, sentence(problem.detail ?? `The server answered ${answer.status}.`), problem.advice);
}

export function sentence(text) {
  const first = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(first) ? first : `${first}.`;
}

export async function get(path, signal) {
  const answer = await send(path, { headers: headers({ accept: "application/json" }), signal });
  return answer.json();
}

/** Like `get`, but numbers of rows that would be rounded stay as the database wrote them. */
export async function getExact(path, signal) {
  const answer = await send(path, { headers: headers({ accept: "application/json" }), signal });
  return exact(await answer.text());
}

/** `body` is a value, or JSON that is sent as it is: parsed, its numbers would be rounded. */
export const post = (path, body) => tell("POST", path, body);

export async function tell(method, path, body) {
  const answer = await send(path, {
    method,
    headers: headers({ accept: "application/json", "content-type": "application/json" }),
    body: typeof body === "string" ? body : JSON.stringify(body ?? {}),
  });
  const text = await answer.text();
  return text ? JSON.parse(text) : null;
}

export function exact(text) {
  return JSON.parse(text, (_, value, context) => {
    if (typeof value !== "number" || context?.source === undefined) return value;
    return String(value) === context.source ? value : new Exact(context.source);
  });
}

/**
 * Reads server-sent events until `signal` says stop. It is done with `fetch`, because `EventSource`
 * cannot send a token. Lost connections are taken up again where they ended.
 */
export async function follow(path, signal, { onchange, onstate }) {
  let last = null;
  let wait = 500;
  while (!signal.aborted) {
    try {
      const more = { accept: "text/event-stream" };
      if (last) more["last-event-id"] = last;
      const answer = await send(path, { headers: headers(more), signal });
      onstate("live");
      wait = 500;
      for await (const event of events(answer.body)) {
        if (event.id) last = event.id;
        if (event.type === "error") throw new Problem(0, sentence(JSON.parse(event.data).detail));
        if (event.data) onchange(exact(event.data));
      }
      onstate("waiting");
    } catch (error) {
      if (signal.aborted) return;
      onstate("waiting", error);
      if ([401, 403, 404].includes(error.status)) return;
    }
    await new Promise((done) => setTimeout(done, wait));
    wait = Math.min(wait * 2, 10000);
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const event = { id: null, type: "message", data: "" };
      for (const line of text.slice(0, end).split("\n")) {
        const colon = line.indexOf(":");
        if (colon <= 0) continue;
        const rest = line.slice(colon + 1).replace(/^ /, "");
        if (line.startsWith("id:")) event.id = rest;
        else if (line.startsWith("event:")) event.type = rest;
        else if (line.startsWith("data:")) event.data += rest;
      }
      text = text.slice(end + 2);
      yield event;
    }
  }
}
