/** Renders the subset of Markdown that models write as elements and text nodes; nothing is parsed as HTML. */

import { make } from "./dom.js";

const INLINE = /(`+)(.+?)\1|\*\*(\S(?:.*?\S)?)\*\*|(?<![\w*])[*_](\S(?:[^*_\n]*?\S)?)[*_](?!\w)|\[(\d{1,2}(?:, ?\d{1,2})*)\]|\uE000(\d+)\uE001/gs;
const MOST_DEEP = 3;

/** Return the placeholder of a citation in a text, a private character and a number; `cite` replaces it by an element. */
export const mark = (number) => `\uE000${number}\uE001`;
const unmarked = (text) => text.replace(/\uE000\d+\uE001/g, "");

/** Return the elements of a text. `cite.source(number)` makes the element of a source's number, or null to leave the text;
    `cite.mark(number)` that of a `mark`. */
export function markdown(text, cite) {
  const blocks = [];
  let list = null;
  const close = () => { list = null; };
  for (const part of text.split(/^( {0,3}```[^\n]*\n[\s\S]*?(?:\n {0,3}```[^\n]*(?:\n|$)|$(?![\s\S])))/m)) {
    if (/^ {0,3}```/.test(part)) {
      close();
      blocks.push(make("pre", {}, make("code", {}, unmarked(part).replace(/^[^\n]*\n/, "").replace(/\n? {0,3}```[^\n]*\n?$/, ""))));
      continue;
    }
    for (const block of part.split(/\n\s*\n|\n(?=\s{0,6}(?:[-*+•]|\d{1,3}[.)])\s)|\n(?=#{1,6}\s)|(?<=^#{1,6}\s[^\n]*)\n/m)) {
      const line = block.trim();
      if (!line) continue;
      const [, mark, item] = line.match(/^([-*+•]|\d{1,3}[.)])\s+(.*)$/s) ?? [];
      const [, heading] = line.match(/^#{1,6}\s+(.*)$/s) ?? [];
      if (mark) {
        const tag = /\d/.test(mark) ? "ol" : "ul";
        if (list?.localName !== tag) blocks.push(list = make(tag, tag === "ol" ? { start: Number.parseInt(mark, 10) } : {}));
        list.append(make("li", {}, ...inline(item, cite)));
      } else {
        close();
        blocks.push(heading === undefined ? make("p", {}, ...inline(line, cite)) : make("p", {}, make("strong", {}, ...inline(heading, cite))));
      }
    }
  }
  return blocks;
}

/** Return the nodes of the text of one block. */
export function inline(text, cite, depth = 0) {
  if (depth === MOST_DEEP) return [text];
  const nodes = [];
  let last = 0;
  for (const { index, 0: all, 2: code, 3: strong, 4: weak, 5: numbers, 6: marked } of text.matchAll(INLINE)) {
    const made = code !== undefined ? [make("code", {}, unmarked(code))]
      : strong !== undefined ? [make("strong", {}, ...inline(strong, cite, depth + 1))]
      : weak !== undefined ? [make("em", {}, ...inline(weak, cite, depth + 1))]
      : marked !== undefined ? [cite.mark(Number(marked))]
      : numbers.split(/, ?/).map((number) => cite.source(Number(number)));
    if (made.includes(null)) continue;
    nodes.push(text.slice(last, index), ...made);
    last = index + all.length;
  }
  return [...nodes, text.slice(last)].filter((node) => node !== "");
}
