/** The dialog with all documents: a filter, links to the documents, and removal of the selected ones. */

import { documents, listeners, removeDocument } from "./documents.js";
import { at, button, counted, make } from "./dom.js";

const isShown = (row) => !row.hidden;

/** Open the dialog with the present documents. */
export function openShelf() {
  at("shelf-filter").value = "";
  at("shelf-rows").replaceChildren(...documents.map(rowOf));
  update();
  at("shelf-dialog").showModal();
}

function rowOf(document) {
  const box = make("input", { type: "checkbox", ariaLabel: `Select ${document.name}` });
  box.addEventListener("change", update);
  const name = button(document.name, () => {
    at("shelf-dialog").close();
    listeners.showFile(null);
    document.sheet.scrollIntoView();
  });
  name.dir = "auto";
  return Object.assign(make("li", {}, box, name), { document, box });
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
