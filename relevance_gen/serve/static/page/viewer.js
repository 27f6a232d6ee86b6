/** A PDF as it is printed, in the browser's own viewer, beside the answer and at the page in question. */

import { at } from "./dom.js";
import { choose } from "./view.js";

let address = "";
let shown = null;  // the document

export const isViewing = () => shown !== null;

/** Show a page of a document's file in place of the text, or with null the text again. */
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
  // A frame of its own for each page: a viewer that is there already does not turn to another.
  const frame = globalThis.document.createElement("iframe");
  frame.title = `${document.name}, page ${page}`;
  frame.src = place;
  at("file").append(frame);
}
