/** The dialog with all conversations: a filter, and buttons to open, rename and delete each. */

import { at, button, counted, make } from "./dom.js";

/** Open the dialog. `threads`: an array of { id, name, questions }, newest first. `actions`: functions `open(id)`,
    `rename(id, name)` and `remove(id)`. */
export function openThreads(threads, actions) {
  at("threads-filter").value = "";
  at("threads-rows").replaceChildren(...threads.map((thread) => rowOf(thread, actions)));
  filterThreads();
  at("threads-dialog").showModal();
}

function rowOf(thread, actions) {
  const { id, questions } = thread;
  const open = button(thread.name, () => { at("threads-dialog").close(); actions.open(id); });
  open.dir = "auto";
  const rename = button("Rename", () => edit(thread, open, actions), { label: `Rename ${thread.name}` });
  const remove = button("Delete", () => { actions.remove(id); row.remove(); filterThreads(); }, { label: `Delete ${thread.name}` });
  const row = make("li", {}, open, make("span", { className: "quiet numbers" }, counted(questions.length, "question")), rename, remove);
  return Object.assign(row, { thread });
}

/** Replace the name by a field; Enter, or leaving the field, stores the name, and Escape restores it. */
function edit(thread, open, { rename }) {
  const input = make("input", { value: thread.name, ariaLabel: "Name of the conversation", maxLength: 200 });
  let isOver = false;  // removing the field also fires blur
  const finish = (name) => {
    if (isOver) return;
    isOver = true;
    if (name && name !== thread.name) rename(thread.id, name);
    thread.name = open.textContent = name || thread.name;
    const hadFocus = document.activeElement === input;
    input.replaceWith(open);
    if (hadFocus) open.focus();
  };
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== "Escape") return;
    event.preventDefault();  // Escape would close the dialog
    event.stopPropagation();
    finish(event.key === "Enter" ? input.value.trim() : "");
  });
  input.addEventListener("blur", () => finish(input.value.trim()));
  open.replaceWith(input);
  input.select();
}

/** Hide the conversations whose name and questions do not contain the filter. */
function filterThreads() {
  const filter = at("threads-filter").value.trim().toLowerCase();
  for (const row of at("threads-rows").children) {
    const { name, questions } = row.thread;
    row.hidden = ![name, ...questions].some((text) => text.toLowerCase().includes(filter));
  }
  at("threads-none").hidden = [...at("threads-rows").children].some((row) => !row.hidden);
}

export function startThreads() {
  at("threads-filter").addEventListener("input", filterThreads);
  at("threads-close").addEventListener("click", () => at("threads-dialog").close());
}
