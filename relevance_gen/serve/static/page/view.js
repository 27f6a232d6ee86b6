/** Selects the pane that a narrow screen displays. */

import { all } from "./dom.js";
import { bringAwaited, placeMarks } from "./marks.js";

export function choose(view) {
  document.body.dataset.view = view;
  for (const one of all(".views button")) one.setAttribute("aria-pressed", String(one.dataset.view === view));
  placeMarks();
  bringAwaited();
}
