// Follows a feed over HTTP with nothing but Node (18 or later): every change once, in order, also after a restart.
//
// usage: node follow.mjs http://127.0.0.1:8787 FEED SHARD
//
// Changes come as server-sent events. `fetch` and the functions below work in a browser as well, where the cursor
// would be kept in `localStorage`; unlike `EventSource`, they can send a token.
import { readFile, rename, writeFile } from "node:fs/promises";
import { setTimeout as sleep } from "node:timers/promises";

const [server, feed, shard] = process.argv.slice(2);
const place = `${feed}-${shard}.place.json`;

/** Where to go on, and in which incarnation of the database that is. */
async function load() {
  try {
    return JSON.parse(await readFile(place, "utf8"));
  } catch (error) {
    if (error.code === "ENOENT") return { cursor: "first", incarnation: null };
    throw error;
  }
}

/** Written beside and moved, so that a crash leaves the old place or the new one. */
async function keep(there) {
  await writeFile(`${place}.new`, JSON.stringify(there));
  await rename(`${place}.new`, place);
}

/** The server-sent events of a body, as objects of their fields. `alive` is called whenever something comes. */
async function* events(body, alive) {
  let text = "";
  for await (const part of body.pipeThrough(new TextDecoderStream())) {
    alive();
    text += part;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const fields = block.split("\n").map((line) => line.split(/: (.*)/s));
      yield Object.fromEntries(fields.filter(([name]) => name !== ""));
    }
  }
}

/** Reads until the connection ends. Returns how many milliseconds to wait before the next one. */
async function follow(there, handle) {
  const headers = { accept: "text/event-stream" };
  if (process.env.CHANGEFEED_TOKEN) headers.authorization = `Bearer ${process.env.CHANGEFEED_TOKEN}`;
  // After the database was restored from a backup this is refused, instead of missing changes.
  if (there.incarnation) headers["changefeed-incarnation"] = there.incarnation;
  // A stream without news shows a sign of life every 15 seconds: one that shows none is dead.
  const silence = new AbortController();
  let timer;
  const alive = () => {
    clearTimeout(timer);
    timer = setTimeout(() => silence.abort(), 60_000);
  };
  alive();
  try {
    const address = `${server}/api/feeds/${feed}/shards/${shard}/changes?after=${there.cursor}`;
    const answer = await fetch(address, { headers, signal: silence.signal });
    if (answer.status === 503) return 1000 * Number(answer.headers.get("retry-after") ?? 1);
    if (!answer.ok) throw new Error((await answer.json()).detail);
    const incarnation = answer.headers.get("changefeed-incarnation");
    for await (const { event, data } of events(answer.body, alive)) {
      if (event === "error") throw new Error(JSON.parse(data).detail);
      // The first block tells where the stream begins, and has no data.
      if (data) await handle(JSON.parse(data), incarnation);
    }
  } catch (error) {
    // Away, restarted or cut off (TypeError), or silent: the cursor knows where to go on.
    if (!(error instanceof TypeError) && error.name !== "AbortError") throw error;
  } finally {
    clearTimeout(timer);
  }
  return 1000;
}

// Ctrl-C waits until it is written down what was printed.
let busy = false;
let stopped = false;
process.on("SIGINT", () => {
  stopped = true;
  if (!busy) process.exit(130);
});

for (;;) {
  const pause = await follow(await load(), async (change, incarnation) => {
    busy = true;
    console.log(change.cursor, JSON.stringify(change.row));
    await keep({ cursor: change.cursor, incarnation });
    busy = false;
    if (stopped) process.exit(130);
  });
  await sleep(pause);
}
