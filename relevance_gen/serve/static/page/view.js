/** Selects the pane that a narrow screen displays. */

import { bringAwaited, placeMarks } from "./marks.js";

export function choose(view) {
  document.body.dataset.view = view;
  for (const one of document.querySelectorAll(".views button")) one.setAttribute("aria-pressed", String(one.dataset.view === view));
  placeMarks();
  bringAwaited();
}
