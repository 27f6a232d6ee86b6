/** Displays a PDF in the browser's viewer next to the answer, at the page of a passage, which is marked. */

import { at } from "./dom.js";
import { choose } from "./view.js";

let address = "";
let shown = null;  // the displayed document

export const isViewing = () => shown !== null;

const EDGE = 5;  // words at the start and the end of a passage that identify it

/** Return the text directive that marks a passage in the file (WICG, Text Fragments); "" for "". */
export function directiveOf(passage) {
  const words = passage.split(/\s+/);
  const ends = words.length > 2 * EDGE ? [words.slice(0, EDGE), words.slice(-EDGE)] : [words];
  const texts = ends.map((end) => end.join(" ").replace(/^[^\p{L}\p{N}]+|[^\p{L}\p{N}]+$/gu, ""));  // a mark ends at a word
  return texts.every(Boolean) ? `:~:text=${texts.map((text) => encodeURIComponent(text).replaceAll("-", "%2D")).join(",")}` : "";
}

/** Display a page of a document's file instead of the text, or the text again for null. `passage` is marked in the page. */
export function showFile(document, page = 1, passage = "") {
  if (document !== shown) {
    URL.revokeObjectURL(address);
    address = document ? URL.createObjectURL(document.file) : "";
  }
  shown = document;
  at("viewer").hidden = !document;
  at("left").classList.toggle("viewing", Boolean(document));
  at("file").replaceChildren();
  if (!document) return;
  choose("document");
  const place = `${address}#page=${page}&navpanes=0&view=FitH${directiveOf(passage)}`;
  at("viewer-name").textContent = `${document.name}, page ${page}`;
  at("viewer-link").href = place;
  if (!navigator.pdfViewerEnabled) return;
  // A new frame for each page, because an open viewer does not change its page.
  const frame = globalThis.document.createElement("iframe");
  frame.title = `${document.name}, page ${page}`;
  frame.src = place;
  at("file").append(frame);
}
