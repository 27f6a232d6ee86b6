/** Splits a text into chunks at paragraphs and sentences. */

import { WRAPPED } from "./reading.js";

const SHORT = 200;  // shorter paragraphs, in characters, are joined
const LONG = 1000;  // longer paragraphs, in characters, are split
const SENTENCE = /[.!?…؟।۔]["'”’»)\]]*\s+|[。！？．]["'”’»)\]」』）]*\s*/g;
const BREAKS = [[SENTENCE, LONG / 4], [/\n/g, LONG / 2], [/\s+/g, LONG / 2]];  // in order of preference, each with the least length of the chunk before it
const BREAKS_OF_CODE = [[/\n/g, LONG / 4], [/\s+/g, LONG / 2]];

const ENDS = new RegExp(`${SENTENCE.source}|\\n`, "g");  // ends of sentences and of lines
const ABBREVIATED = /(?:^|[\s("“])(?:\p{L}|[\p{L}]\.\p{L}|Dr|Mrs?|Ms|St|No|Fig|vs|cf)$|(?:^|\n)\s*\d{1,3}$/u;  // before a full stop that does not end a sentence
const MOST_WIDENED = 400;  // characters that a part of a text is extended by at each end

const BLANK = /[\s\x1c-\x1f\x85]/;  // eslint-disable-line no-control-regex -- the same characters that the server treats as blank
const FENCE = /^ {0,3}(?:```|~~~)/gm;

/** Return whether a paragraph is a heading: of Markdown, or a short line without the punctuation of a sentence. */
export const isHeading = (paragraph) => /^(#{1,6} .*|[\p{Lu}\p{Lt}\d][^\n,;|={}<>\t]{0,59}(?<![.!?…:;,]))$/u.test(paragraph);

export const beginsFence = (chunk) => /^ {0,3}(?:```|~~~)/.test(chunk);

/** Yield start and end of each chunk without surrounding white space, and whether it is part of a fenced block. A heading
    begins a chunk. */
export function* chunksOf(text, { isCode = false } = {}) {
  const breaks = isCode ? BREAKS_OF_CODE : BREAKS;
  let open = null;
  for (const [start, end] of paragraphsOf(text)) {
    const head = text.slice(start, Math.min(end, start + 80));
    const most = !isCode && end - start <= 80 && isHeading(head) ? SHORT / 2 : beginsFence(head) ? 0 : SHORT;
    if (open && (open[1] - open[0] >= most || beginsFence(text.slice(open[0], open[0] + 8)) || end - open[0] > LONG)) {
      yield* cut(text, ...open, breaks);
      open = null;
    }
    open = open ? [open[0], end] : [start, end];
  }
  if (open) yield* cut(text, ...open, breaks);
}

/** Yield start and end of each paragraph and of each fenced block. No pattern begins with white space, which takes
    quadratic time on long runs of it. */
function* paragraphsOf(text) {
  let start = 0;
  let isOpen = false;  // whether a fence is open
  let seen = 0;
  for (const { index, 0: gap } of [...text.matchAll(/\n[^\S\n]*\n|\f/g), { index: text.length, 0: "" }]) {
    let end = index;
    for (const _ of text.slice(seen, index).matchAll(FENCE)) isOpen = !isOpen;
    seen = index + gap.length;
    if (isOpen && index < text.length) continue;
    while (start < end && BLANK.test(text[start])) start += 1;
    while (start < end && BLANK.test(text[end - 1])) end -= 1;
    if (start < end) yield [start, end];
    start = index + gap.length;
  }
}

function* cut(text, start, end, breaks) {
  const isFenced = beginsFence(text.slice(start, start + 8));
  const kinds = isFenced || text[start] === "|" ? BREAKS_OF_CODE : breaks;  // a row of a table stays whole
  while (end - start > LONG) {
    const stop = start + endOfChunk(text.slice(start, start + LONG), kinds);
    let last = stop;
    while (BLANK.test(text[last - 1])) last -= 1;
    yield [start, last, isFenced];
    start = stop;
    while (start < end && BLANK.test(text[start])) start += 1;
  }
  if (end > start) yield [start, end, isFenced];
}

/** Return the end of a full chunk: the last break after the least length, never inside a surrogate pair. */
function endOfChunk(full, breaks) {
  for (const [pattern, least] of breaks) {
    const ends = [...full.matchAll(pattern)].map((found) => found.index + found[0].length).filter((end) => end > least);
    if (ends.length) return ends.at(-1);
  }
  return full.codePointAt(full.length - 1) >= 0xd800 && full.codePointAt(full.length - 1) < 0xdc00 ? full.length - 1 : full.length;
}

/** Return a function that converts an offset in code points, as the server counts, to an offset in UTF-16 units. */
export function unitsOf(text) {
  if (!/[\ud800-\udbff]/.test(text)) return (point) => point;
  const units = [0];
  for (const character of text) units.push(units.at(-1) + character.length);
  return (point) => units[point];
}

/** Extend a part of a text to whole sentences, or whole lines where there are none; a heading to the next sentence. An end stays if its sentence is long;
    `isCut` is true for the start. */
export function sentencesOf(text, [start, stop]) {
  const end = start + text.slice(start, stop).trimEnd().length;
  const wraps = new Set([...text.matchAll(new RegExp(WRAPPED, "gu"))].map(({ index }) => index));
  let [first, last] = [0, text.length];
  for (const { index, 0: sign } of text.matchAll(ENDS)) {
    if (wraps.has(index) || (sign.startsWith(".") && ABBREVIATED.test(text.slice(Math.max(0, index - 8), index)))) continue;
    const behind = index + sign.length;
    if (behind <= start) first = behind;
    else if (index + sign.trimEnd().length >= end) {
      last = index + sign.trimEnd().length;
      break;
    }
  }
  while (first < start && BLANK.test(text[first])) first += 1;
  const next = text.slice(last).search(/\S/);
  if (next > 0 && isHeading(text.slice(first, last))) return sentencesOf(text, [start, last + next + 1]);
  const isCut = start - first > MOST_WIDENED;
  return { start: isCut ? start : first, end: last - end > MOST_WIDENED ? end : last, isCut };
}
