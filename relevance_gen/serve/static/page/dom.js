/** The few things that every part of the page does with its elements. */

export const at = (id) => document.getElementById(id);

/** Make an element; children are elements or strings, which become text nodes, and null for none. */
export function make(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** Make a button that says `text` and calls `act`; `label` is what a screen reader says of it, where that is more. */
export function button(text, act, { className = "plain", label = "" } = {}) {
  const made = make("button", { type: "button", className }, text);
  if (label) made.setAttribute("aria-label", label);
  made.addEventListener("click", act);
  return made;
}

export const nextFrame = () => new Promise((resolve) => { requestAnimationFrame(() => setTimeout(resolve)); });

export const counted = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

/** What went wrong, in words for the reader; `status` is what the server answered with. */
export class Problem extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** Show what went wrong beside the question, or with null nothing. Whatever was stopped is nothing wrong. */
export function complain(error) {
  if (error?.name === "AbortError") return;
  at("trouble").hidden = !error;
  at("trouble").textContent = error instanceof Problem ? error.message : error ? `Something is wrong with this page: ${error.message}` : "";
}

export function say(status) {
  at("status").textContent = status;
}
