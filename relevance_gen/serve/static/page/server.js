/** Requests to the server: its limits, the key, searches of chunks, and streams of events. */

import { at, counted, Problem, say } from "./dom.js";

const KEY = "relevance_gen.key";  // in sessionStorage, which ends with the tab

export const CUT = "The connection was closed before the answer was complete.";

export const hasKey = () => Boolean(sessionStorage.getItem(KEY));

export const keyHeader = () => ({ "X-API-Key": sessionStorage.getItem(KEY) ?? "" });

const MIB = 1 << 20;
const FOR_CHUNKS = 0.99;  // fraction of the bytes of a request; the rest is for the question
let most = { max_chunks: Infinity, max_body_bytes: Infinity };  // limits of one request

/** Load the limits of the server; until then only the server checks them. */
export async function askForLimits() {
  try {
    most = (await (await fetch("./", { headers: { Accept: "application/json" }, cache: "no-store" })).json()).limits ?? most;
  } catch { /* without limits the server checks the requests */ }
}

/** Return whether a number of chunks, or their bytes as JSON, exceed the limits of one request. */
export const isTooMuch = (nChunks, nBytes) => nChunks > most.max_chunks || nBytes > FOR_CHUNKS * most.max_body_bytes;

/** Return the error for documents that exceed the limits, with the remedy. */
export function tooMuch(what) {
  const limits = most.max_chunks < Infinity ? ` (${counted(most.max_chunks, "passage")}, ${(most.max_body_bytes / MIB).toLocaleString("en", { maximumSignificantDigits: 3 })} MiB)` : "";
  return new Problem(`${what} more than this server searches at once${limits}. Use fewer or smaller documents, or let the server serve an index of them: relevance-gen index FILE --save A.index, then relevance-gen serve --index A=A.index`, 413);
}

/** Move the key from the address, where the server's link has it, to the session, so that it is not displayed or stored. */
export function takeKey() {
  const given = new URLSearchParams(location.hash.slice(1));
  if (!given.has("key")) return;
  sessionStorage.setItem(KEY, given.get("key"));
  given.delete("key");
  history.replaceState(history.state, "", `${location.pathname}${location.search}${given.size ? `#${given}` : ""}`);
}

/** Post JSON; request a key first, and again if it is wrong. Cancelling the dialog throws an AbortError. */
export async function post(path, body, signal) {
  if (!hasKey()) await askForKey();
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const asked = performance.now();
    const response = await reach(path, { method: "POST", headers: { "Content-Type": "application/json", "X-API-Key": key }, body, signal });
    if (response.ok) return Object.assign(response, { asked });
    const { type, message } = await errorOf(response);
    const retryAfter = Number(response.headers.get("Retry-After"));
    if (type === "rate_limited" && retryAfter > 0) {
      await countDown(retryAfter, signal);
      continue;
    }
    if (response.status !== 401) throw new Problem(type === "no_runner" ? "No model is available right now. Search still works." : sentence(message), response.status);
    if (sessionStorage.getItem(KEY) === key) await askForKey("This key is not valid. Check the terminal, or ask the administrator of the server.");
  }
}

/** Wait `seconds`, and show the remaining time. Rejects with an AbortError if `signal` is aborted. */
async function countDown(seconds, signal) {
  for (let left = seconds; left > 0; left -= 1) {
    say(`Too many requests. The page tries again in ${counted(left, "second")}.`);
    await new Promise((resolve) => { setTimeout(resolve, 1000); });
    signal?.throwIfAborted();
  }
}

/** Chunks to search. The server caches their index after the first request; later requests use its name. */
export class Corpus {
  constructor(chunks) {
    this.chunks = chunks;
    this.size = chunks.length;
    this.body = null;  // the chunks as JSON, created once
    this.name = null;
  }

  /** Return the chunk of a search result. */
  chunkOf({ original_index: position }) {
    return this.chunks[position];
  }

  /** Return the position of a chunk in requests. */
  positionOf(chunk) {
    return this.chunks.indexOf(chunk);
  }

  async post(path, fields, signal) {
    if (this.name) {
      try {
        return await post(path, JSON.stringify({ ...fields, index: this.name }), signal);
      } catch (error) {
        if (error.status !== 404) throw error;  // the server evicted the index, or another process answers
      }
    }
    this.body ??= new Blob([JSON.stringify(this.chunks.map((chunk) => chunk.text))]);
    const response = await post(path, new Blob([JSON.stringify({ ...fields, cache_index: true }).slice(0, -1), ',"chunk_txts":', this.body, "}"]), signal)
      .catch((error) => { throw error.status === 413 ? tooMuch("These documents are together") : error; });
    this.name = response.headers.get("X-Index");
    return response;
  }
}

/** Return the names of the models that generate text; [] if there is none, or if the request fails. */
export async function listModels() {
  try {
    const response = await fetch("v1/models", { headers: keyHeader() });
    const { data } = await response.json();
    return data.filter(({ task }) => task === "generate").map(({ id }) => id);
  } catch {
    return [];
  }
}

async function reach(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server does not answer. Is it still running?");
  }
}

async function errorOf(response) {
  try {
    return (await response.json()).error;
  } catch {
    return { type: "unknown", message: `the server answered ${response.status}` };
  }
}

export const sentence = (message) => `${message[0].toUpperCase()}${message.slice(1)}.`;

let keyAsked = null;

/** Show the dialog for the key once, for all requests that wait for it. */
export function askForKey(complaint) {
  keyAsked ??= showKeyDialog(complaint).finally(() => { keyAsked = null; });
  return keyAsked;
}

function showKeyDialog(complaint) {
  const dialog = at("key-dialog");
  if (complaint) at("key-reason").textContent = complaint;
  at("key-reason").classList.toggle("wrong", Boolean(complaint));
  at("key").setAttribute("aria-invalid", String(Boolean(complaint)));
  at("key").value = "";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve, reject) => {
    dialog.addEventListener("close", () => {
      const key = at("key").value.trim();
      at("key").value = "";
      if (dialog.returnValue !== "given" || !key) return reject(new DOMException("no key was given", "AbortError"));
      sessionStorage.setItem(KEY, key);
      dispatchEvent(new Event("key"));
      return resolve();
    }, { once: true });
  });
}

/** Yield name and data of each server-sent event of a response. */
export async function* eventsOf(response) {
  let rest = "";
  for await (const piece of decoded(response.body)) {
    const events = (rest + piece).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const [, name, data] = event.match(/^(?:event: (\w+)\n)?data: (.*)$/s) ?? [];
      if (data && data !== "[DONE]") yield [name, JSON.parse(data)];
    }
  }
}

async function* decoded(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (let { done, value } = await reader.read(); !done; { done, value } = await reader.read()) yield value;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(CUT);
  } finally {
    reader.cancel().catch(() => {});  // frees the slots of the server
  }
}
