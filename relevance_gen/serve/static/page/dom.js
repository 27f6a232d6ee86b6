/** Helpers for elements that all modules of the page use. */

/** Return the element with an id. @type {(id: string) => any} */
export const at = (id) => document.getElementById(id);

/** Return the elements that match a selector. @type {(selector: string) => NodeListOf<HTMLElement>} */
export const all = (selector) => document.querySelectorAll(selector);

/** Create an element. Children are elements or strings, which become text nodes; null is left out. @returns {any} */
export function make(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** Create a button with `text` that calls `act`; `label` is its accessible name if that differs from the text. */
export function button(text, act, { className = "plain", label = "" } = {}) {
  const made = make("button", { type: "button", className }, text);
  if (label) made.setAttribute("aria-label", label);
  made.addEventListener("click", act);
  return made;
}

export const nextFrame = () => new Promise((resolve) => { requestAnimationFrame(() => setTimeout(resolve)); });

export const counted = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

/** An error with a message for the user; `status` is the HTTP status, if the server reported it. */
export class Problem extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

const messageOf = (error) => (error instanceof Problem ? error.message : `Something is wrong with this page: ${error.message}`);

/** Display an error below the question, or none for null. An AbortError is not displayed. */
export function complain(error) {
  if (error?.name === "AbortError") return;
  at("trouble").replaceChildren();
  at("trouble").hidden = at("again").hidden = true;
  if (error) complainFurther(error);
}

/** Display an error after the errors that are displayed. */
export function complainFurther(error) {
  if (error.name === "AbortError") return;
  at("trouble").append(make("span", {}, messageOf(error)));
  at("trouble").hidden = false;
  at("trouble").tabIndex = at("trouble").children.length > 4 ? 0 : -1;  // a long list scrolls
}

export function say(status) {
  at("status").textContent = status;
}
