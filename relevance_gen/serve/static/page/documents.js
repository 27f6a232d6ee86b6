/** Documents: reads files, splits them into chunks, displays them, and lists their names. */

import { chunksOf, isHeading } from "./chunking.js";
import { at, button, complain, complainFurther, counted, make, nextFrame, Problem, say } from "./dom.js";
import { dropDocument, keepDocument } from "./keeping.js";
import { indexOf, optionsOfIndexes } from "./offered.js";
import { kindOf, reading } from "./reading.js";
import { Corpus, isTooMuch, post, tooMuch } from "./server.js";

const GROUP = [12, 4000];  // minimum numbers of chunks and characters of a group
const AT_ONCE = 2000;  // chunks that are drawn when a document is read; later chunks are drawn near the view
const DRAWS_LATER = "ContentVisibilityAutoStateChangeEvent" in globalThis;
const MOST_NAMES = 12;  // documents whose names are listed above the text; more are listed in a dialog
const SLICE_MS = 12;  // maximum time of work before the browser can draw

const utf8 = new TextEncoder();

export const EXAMPLE_ID = 0;  // id of the document of a first visit

export let documents = [];  // { id, name, parts, file, kind, sheet, label, chunks, nBytes }
let corpora = new Map();  // id of a document, or "all", to its corpus

/** Callbacks: `changed` after a document is added or removed, with the removed document; `laidOut` for each new sheet;
    `showFile` with a document, a page and a passage. @type {Record<string, (...values: any[]) => void>} */
export const listeners = { changed: () => {}, laidOut: () => {}, showFile: () => {} };

/** Return the corpus of the selected scope: all chunks, the chunks of one document, or an index of the server. */
export function corpus() {
  const chosen = at("scope").value || "all";
  const offered = indexOf(chosen);
  if (offered) return offered;
  if (!corpora.has(chosen)) {
    corpora.set(chosen, new Corpus(documents.filter(({ id }) => chosen === "all" || String(id) === chosen).flatMap((one) => one.chunks)));
  }
  return corpora.get(chosen);
}

/** Add a document of `parts`, each with `place` and `text`, and lay it out incrementally. @param {any} given */
export async function addDocument({ id, name, parts, file = null }, { isKept = false, quietly = false } = {}) {
  const added = { id: id ?? Math.max(Date.now(), 1 + (documents.at(-1)?.id ?? 0)), name, parts, file, chunks: [], nBytes: 0 };
  added.sheet = make("article", { className: "sheet" }, make("h2", { textContent: name }));
  added.kind = kindOf(name, parts[0]?.text ?? "");
  added.sheet.classList.toggle("code", added.kind === "code");
  added.label = labelOf(added);
  documents.push(added);
  at("names").append(added.label);
  at("text").append(added.sheet);
  listeners.laidOut(added.sheet);
  at("text").setAttribute("aria-busy", "true");
  const isWhole = await layOut(added, isKept);
  if (!documents.includes(added)) return;  // it was removed during the layout
  collect();
  if (!added.chunks.length || !isWhole) {
    removeDocument(added);
    throw isWhole ? new Problem(`${name} has no text.`) : tooMuch(`${name} was not added: ${documents.length ? "together with the others it is" : "it is"}`);
  }
  const example = documents.find((one) => one.id === EXAMPLE_ID);
  if (example && example !== added && !isKept) removeDocument(example);
  if (!quietly && documents.length > 1) added.sheet.scrollIntoView();
  if (!isKept && !(await keepDocument(added))) say(`${name} is too large to save in this browser. Add it again after a reload.`);
}

const sumOf = (sizeOf) => documents.reduce((sum, one) => sum + sizeOf(one), 0);

const areTooMuch = () => isTooMuch(sumOf(({ chunks }) => chunks.length), sumOf(({ nBytes }) => nBytes));

/** Lay out a document; return false if it was removed meanwhile, or if all documents together exceed the limits. */
async function layOut(added, isKept) {
  const isCode = added.kind === "code";
  const nChars = added.parts.reduce((sum, part) => sum + part.text.length, 0);
  let group = null;
  let resumed = performance.now();
  let [done, said] = [0, resumed];
  const close = () => {
    if (!group) return;
    group.style.setProperty("--chars", group.n_chars);
    group.style.setProperty("--chunks", group.chunks.length);
    if (DRAWS_LATER && added.chunks.length > AT_ONCE && !group.children.length) group.textContent = group.chunks.map((chunk) => chunk.text).join("\n\n");  // plain text, so that the browser's search finds it
    else draw(group);
    added.sheet.append(group);
    group = null;
  };
  for (const part of added.parts) {
    const text = part.text.replace(/\r\n?/g, "\n");
    const place = placeOf(part.place);
    if (place && added.parts.length > 1) {
      close();
      added.sheet.append(make("h3", { className: "place" }, pageOf(added, part.place, place)));
    }
    let behind = 0;
    for (const [start, end, isFenced] of chunksOf(text, { isCode })) {
      if (behind) added.chunks.at(-1).blankLines = blankLines(text.slice(behind, start));
      behind = end;
      if (group && group.chunks.length >= GROUP[0] && group.n_chars >= GROUP[1]) close();
      group ??= Object.assign(make("div", { className: "group" }), { chunks: [], n_chars: 0 });
      added.chunks.push(addChunk(group, text.slice(start, end), added, part.place ?? {}, isFenced));
      added.nBytes += utf8.encode(JSON.stringify(text.slice(start, end))).length + 1;
      if (performance.now() - resumed > SLICE_MS) {
        await nextFrame();
        if (!documents.includes(added) || (!isKept && areTooMuch())) return false;
        resumed = performance.now();
        if (resumed - said > 2000 && at("status").textContent.startsWith("Reading ")) {
          said = resumed;
          say(`Reading ${added.name} … ${Math.floor((100 * (done + end)) / nChars)} %`);
        }
      }
    }
    done += text.length;
  }
  close();
  return isKept || !areTooMuch();
}

/** Create the missing elements of a group's chunks. */
function draw(group) {
  const nDrawn = group.children.length;
  if (nDrawn === group.chunks.length) return;
  if (!nDrawn) group.replaceChildren();  // removes the plain text
  for (const chunk of group.chunks.slice(nDrawn)) group.append(chunk.drawn = elementOf(chunk));
}

at("text").addEventListener("contentvisibilityautostatechange", ({ target, skipped }) => { if (!skipped && target.chunks) draw(target); });

/** Return the location of a part in its document, such as "page 3"; "" for a whole document. */
export function placeOf(place) {
  const [kind, which] = Object.entries(place ?? {}).find(([name]) => name !== "title") ?? [];
  return kind ? `${kind} ${which}` : "";
}

/** Return the text of a location; for a page of a PDF, a button that opens the page, where `passage` is marked. */
export function pageOf(document, place, words, passage = "") {
  return document.file && place?.page ? button(words, () => listeners.showFile(document, place.page, passage), { label: `Show ${words} of ${document.name} as it is printed` }) : words;
}

/** Return the number of blank lines that represent the white space between two chunks. */
const blankLines = (gap) => Math.min(Math.max(gap.split("\n").length - 2, 0), 2);

function addChunk(group, text, document, place, isFenced) {
  const chunk = {
    text, group, document, place, isFenced, number: document.chunks.length, before: group.n_chars, blankLines: 0,
    get element() { draw(group); return chunk.drawn; },
  };
  group.chunks.push(chunk);
  group.n_chars += text.length;
  return chunk;
}

function elementOf({ text, document, isFenced, blankLines: n }) {
  const element = make("p", { className: "chunk", tabIndex: -1 }, ...reading(text, document.kind, { isFenced }));
  element.classList.toggle("titled", document.kind === "text" && text.includes("\n\n") && isHeading(text.split("\n\n", 1)[0]));
  element.classList.toggle("code", isFenced);
  element.style.setProperty("--blank-lines", n);
  return element;
}

/** Return the list item of a document. A long name is shortened in its middle, because names often differ at their ends. */
function labelOf(added) {
  const cutAt = added.name.length < 28 ? added.name.length : added.name.length - 14;
  const name = button("", () => { listeners.showFile(null); added.sheet.scrollIntoView(); }, { className: "name", label: added.name });
  name.title = added.name;
  name.dir = "auto";  // the order of its halves follows the direction of its script
  name.append(make("span", {}, added.name.slice(0, cutAt)), make("span", {}, added.name.slice(cutAt)));
  const remove = button("×", () => { removeDocument(added); at("add").focus(); }, { label: `Remove ${added.name}` });
  remove.title = "Remove";
  const first = added.parts.find((part) => part.place?.page);
  return make("li", {}, name, added.file && first ? pageOf(added, first.place, "PDF") : null, remove);
}

export function removeDocument(removed) {
  documents = documents.filter((one) => one !== removed);
  removed.sheet.remove();
  removed.label.remove();
  dropDocument(removed.id);
  collect(removed);
}

/** List the scopes of a question: all documents, each document, and the indexes of the server. */
export function listScopes() {
  const chosen = at("scope").value;
  const offered = optionsOfIndexes();
  at("scope").replaceChildren(
    make("option", { value: "all", textContent: documents.length === 1 ? "This document" : documents.length ? `All ${documents.length} documents` : "No document" }),
    ...(documents.length > 1 ? documents.map(({ id, name }) => make("option", { value: id, textContent: name })) : []), ...offered,
  );
  chooseScope(chosen);
  at("scope-label").hidden = documents.length < 2 && !offered.length;
}

/** Select a scope; return false, and select all documents, if it does not exist. */
export function chooseScope(scope) {
  at("scope").value = scope;
  const isThere = at("scope").selectedIndex >= 0;
  if (!isThere) at("scope").value = "all";
  return isThere;
}

/** Update the corpora and scopes after a document was added or removed. */
function collect(removed = null) {
  corpora = new Map();
  listScopes();
  at("empty").hidden = documents.length > 0;
  at("names").hidden = documents.length > MOST_NAMES;
  at("all").hidden = !at("names").hidden;
  at("all").textContent = counted(documents.length, "document");
  at("names").setAttribute("aria-label", counted(documents.length, "document"));
  at("text").removeAttribute("aria-busy");
  listeners.changed(removed);
}

// ── Files ────────────────────

export async function addFiles(files) {
  complain(null);
  const all = [...files];
  for (const [place, file] of all.entries()) {
    say(`Reading ${all.length > 1 ? `${place + 1} of ${all.length}: ` : ""}${file.name} …`);
    at("status").classList.add("working");
    try {
      await addDocument(await documentOf(file));
    } catch (error) {
      complainFurther(error);
    } finally {
      at("status").classList.remove("working");
    }
  }
  if (at("status").textContent.startsWith("Reading ")) say("");
}

/** Read a file: text in the browser; PDF, HTML, Office and CSV files by the server. */
async function documentOf(file) {
  if (isTooMuch(0, file.size / 2)) throw tooMuch(`${file.name} was not added: it is`);  // half of its size, because it can be UTF-16
  const bytes = new Uint8Array(await file.arrayBuffer());
  if (!bytes.length) throw new Problem(`${file.name} is empty.`);
  const beginning = String.fromCharCode(...bytes.subarray(0, 5));
  const isPdf = beginning === "%PDF-";
  if (isPdf || beginning.startsWith("PK\x03\x04") || /\.(x?html?|eml|csv|tsv)$/i.test(file.name)) {
    return { name: file.name, parts: await extracted(file), file: isPdf ? new Blob([bytes], { type: "application/pdf" }) : null };
  }
  return { name: file.name, parts: [{ place: {}, text: decoded(bytes, file.name) }] };
}

function decoded(bytes, name) {
  const encoding = bytes[0] === 0xff && bytes[1] === 0xfe ? "utf-16le" : bytes[0] === 0xfe && bytes[1] === 0xff ? "utf-16be" : "utf-8";
  if (encoding === "utf-8" && bytes.subarray(0, 8192).includes(0)) throw new Problem(`${name} is not a text file.`);
  try {
    return new TextDecoder(encoding, { fatal: true }).decode(bytes);
  } catch {
    return new TextDecoder("windows-1252").decode(bytes);
  }
}

async function extracted(file) {
  const content = (await dataUrlOf(file)).split(",")[1] ?? "";
  let response;
  try {
    response = await post("extract", JSON.stringify({ name: file.name, content }));
  } catch (error) {
    if (error.status === 413) throw tooMuch(`${file.name} was not added: it is`);
    throw error instanceof Problem ? new Problem(error.message.replace(/^Content/, file.name).replace(/ \(\w+Error: .*\)/s, "").replace(/needs pip install (\S+) on the server/, "cannot be read by this server, which lacks $1")) : error;
  }
  const { parts, warning } = await response.json();
  if (warning) complainFurther(new Problem(`${file.name} ${warning}.`));
  return parts;
}

function dataUrlOf(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(new Problem(`${file.name} cannot be read.`)));
    reader.readAsDataURL(file);
  });
}
