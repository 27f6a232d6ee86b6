/** Answers with their sources as Markdown: to copy, and to save. */

import { withMarks } from "./answering.js";
import { placeOf } from "./documents.js";
import { at, make } from "./dom.js";

const escapeHtml = (text) => text.replace(/[<&]/g, (char) => (char === "<" ? "&lt;" : "&amp;"));

/** Escape a line of plain text, so that Markdown shows its characters. */
const escapeLine = (text) => escapeHtml(text.replace(/[\\`*_[\]#|~]/g, "\\$&")).replace(/\s+/g, " ");

/** Escape HTML in Markdown outside its code, where Markdown itself escapes it. */
const escapeMarkdown = (text) => text.split(/(```[^]*?(?:```|$)|`[^`\n]*`)/).map((part, index) => (index % 2 ? part : escapeHtml(part))).join("");

/** Return a turn as Markdown: the question, the answers, and the passages that they are from. */
export function markdownOf(turn) {
  const { question, answers, sources, hits } = turn;
  const given = sources.length ? sources : hits.slice(0, 5);
  const listed = given.map(({ chunk: { text, document, place } }, number) => {
    const where = [document.name, placeOf(place)].filter(Boolean).join(", ");
    return `[${number + 1}] ${escapeLine(where)}\n\n${escapeHtml(text).replace(/^/gm, "> ")}`;
  });
  const texts = answers.map((_, number) => withMarks(turn, number, (place) => (place ? ` [${place.source + 1}]` : " [not found in the passages]")).trim()).filter(Boolean);
  return [`## ${escapeLine(question)}`, ...texts.map(escapeMarkdown), ...(listed.length ? ["### Sources", ...listed] : [])].join("\n\n");
}

/** Copy a text to the clipboard, and confirm it on the button. */
export async function copy(text, pressed) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {  // the clipboard is available only with TLS or on localhost
    const field = make("textarea", { value: text, className: "unseen" });
    document.body.append(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  const before = pressed.textContent;
  if (before === "Copied") return;
  pressed.textContent = "Copied";
  setTimeout(() => { pressed.textContent = before; }, 1500);
}

/** Save all turns as a file. */
export function save(turns) {
  const address = URL.createObjectURL(new Blob([`${turns.map(markdownOf).join("\n\n")}\n`], { type: "text/markdown" }));
  make("a", { href: address, download: "answers.md" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
  at("save").blur();
}
