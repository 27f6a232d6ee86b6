/** Indexes of the server, which can be searched by name instead of documents. */

import { at, make } from "./dom.js";
import { kindOf, reading } from "./reading.js";
import { keyHeader, post } from "./server.js";

const PREFIX = "index:";  // prefix of an option's value

let indexes = [];  // the server's descriptions
const asked = new Map();  // name to opened index

/** Load the list of indexes for this key; it is empty if the request fails. */
export async function lookForIndexes() {
  try {
    indexes = (await (await fetch("indexes", { headers: keyHeader() })).json()).indexes ?? [];
  } catch {
    indexes = [];
  }
}

/** Return the options for the indexes; [] without indexes. */
export function optionsOfIndexes() {
  if (!indexes.length) return [];
  const options = indexes.map(({ name, state }) => make("option", { value: PREFIX + name, textContent: state === "unavailable" ? `${name} (unavailable)` : name, disabled: state === "unavailable" }));
  return [make("optgroup", { label: "On the server" }, ...options)];
}

export const isIndex = (scope) => scope.startsWith(PREFIX);

/** Return the index of an option; null for other options. */
export function indexOf(value) {
  if (!isIndex(value)) return null;
  const name = value.slice(PREFIX.length);
  if (!asked.has(name)) asked.set(name, new OfferedIndex(name));
  return asked.get(name);
}

export function forgetIndexes() {
  for (const one of asked.values()) one.sheet.remove();
  asked.clear();
}

const sizeOf = (name) => indexes.find((one) => one.name === name)?.num_chunks ?? 0;

/** An index of the server. Only chunks that were found are displayed, in their order. */
class OfferedIndex {
  constructor(name) {
    this.name = name;
    this.size = sizeOf(name);
    this.chunks = new Map();  // position to chunk
    this.sheet = make("article", { className: "sheet" }, make("h2", { textContent: `${name}: results` }));
  }

  async post(path, fields, signal) {
    const response = await post(path, JSON.stringify({ ...fields, index: this.name }), signal);
    if (!this.size) {  // the search opened the index
      await lookForIndexes();
      this.size = sizeOf(this.name);
    }
    return response;
  }

  /** Return the chunk of a search result; null for a result without text that was not found before. @param {any} result */
  chunkOf({ original_index: position, chunk_txt: text, metadata = {}, title }) {
    if (this.chunks.get(position)?.text === (text ?? this.chunks.get(position)?.text)) return this.chunks.get(position) ?? null;
    this.chunks.get(position)?.group.remove();  // the index has changed
    if (!this.sheet.isConnected) at("text").append(this.sheet);
    const file = metadata.path ?? metadata.source;
    const document = { id: this.name, name: String(file ?? title ?? this.name), isOffered: true };
    document.kind = kindOf(String(file ?? this.name), text);
    const element = make("p", { className: "chunk", tabIndex: -1 }, ...reading(text, document.kind));
    element.classList.toggle("code", document.kind === "code");
    element.style.setProperty("--blank-lines", 1);
    const group = Object.assign(make("div", { className: "group" }, element), { n_chars: text.length, number: position });
    group.style.setProperty("--chars", text.length);
    group.style.setProperty("--chunks", 1);
    this.sheet.insertBefore(group, [...this.sheet.children].find((one) => one.number > position) ?? null);
    const place = Object.fromEntries(Object.entries(metadata).filter(([name]) => ["page", "slide", "sheet"].includes(name)));
    const chunk = { text, element, group, document, place, number: position, before: 0 };
    this.chunks.set(position, chunk);
    return chunk;
  }

  positionOf(chunk) {
    return chunk.number;
  }
}
