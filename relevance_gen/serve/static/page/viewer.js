/** Displays a PDF in the browser's viewer next to the answer, at the page of a passage. */

import { at } from "./dom.js";
import { choose } from "./view.js";

let address = "";
let shown = null;  // the displayed document

export const isViewing = () => shown !== null;

/** Display a page of a document's file instead of the text, or the text again for null. */
export function showFile(document, page = 1) {
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
  const place = `${address}#page=${page}&navpanes=0&view=FitH`;
  at("viewer-name").textContent = `${document.name}, page ${page}`;
  at("viewer-link").href = place;
  if (!navigator.pdfViewerEnabled) return;
  // A new frame for each page, because an open viewer does not change its page.
  const frame = globalThis.document.createElement("iframe");
  frame.title = `${document.name}, page ${page}`;
  frame.src = place;
  at("file").append(frame);
}
