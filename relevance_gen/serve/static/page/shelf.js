/** The dialog with all documents: a filter, links to the documents, and removal of the selected ones. */

import { documents, listeners, removeDocument } from "./documents.js";
import { at, button, counted, make } from "./dom.js";

const isShown = (row) => !row.hidden;

/** Open the dialog with the present documents. */
export function openShelf() {
  at("shelf-filter").value = "";
  list();
  at("shelf-dialog").showModal();
}

/** List the documents in the chosen order; the largest is first in the order of sizes. */
function list() {
  const compare = { Name: (one, two) => one.name.localeCompare(two.name), Size: (one, two) => sizeOf(two) - sizeOf(one) }[at("shelf-order").value];
  at("shelf-rows").replaceChildren(...(compare ? documents.toSorted(compare) : documents).map(rowOf));
  update();
}

/** Return the number of characters of a document. */
const sizeOf = ({ parts }) => parts.reduce((sum, { text }) => sum + text.length, 0);

function rowOf(document) {
  const box = make("input", { type: "checkbox", ariaLabel: `Select ${document.name}` });
  box.addEventListener("change", update);
  const name = button(document.name, () => {
    at("shelf-dialog").close();
    listeners.showFile(null);
    document.sheet.scrollIntoView();
  });
  name.dir = "auto";
  const size = make("span", { className: "quiet numbers" }, counted(sizeOf(document), "character"));
  return Object.assign(make("li", {}, box, name, size), { document, box });
}

/** Hide the documents that do not match the filter, and describe the selection. */
function update() {
  const filter = at("shelf-filter").value.trim().toLowerCase();
  const rows = [...at("shelf-rows").children];
  for (const row of rows) row.hidden = !row.document.name.toLowerCase().includes(filter);
  const nSelected = selected().length;
  at("shelf-remove").disabled = !nSelected;
  at("shelf-remove").textContent = nSelected ? `Remove ${counted(nSelected, "document")}` : "Remove";
  at("shelf-all").checked = rows.some(isShown) && nSelected === rows.filter(isShown).length;
}

const selected = () => [...at("shelf-rows").children].filter((row) => isShown(row) && row.box.checked);

export function startShelf() {
  at("shelf-filter").addEventListener("input", update);
  at("shelf-order").addEventListener("change", list);
  at("shelf-all").addEventListener("change", () => {
    for (const row of [...at("shelf-rows").children].filter(isShown)) row.box.checked = at("shelf-all").checked;
    update();
  });
  at("shelf-remove").addEventListener("click", () => {
    for (const row of selected()) {
      removeDocument(row.document);
      row.remove();
    }
    update();
  });
  at("shelf-close").addEventListener("click", () => at("shelf-dialog").close());
}
