/** Marks of results: shaded sentences, a line at the margin of each chunk, and marks on the strip next to the scrollbar. */

import { sentencesOf } from "./chunking.js";
import { at, make, nextFrame } from "./dom.js";

const MARKS = ["shade-1", "shade-2", "shade-3", "shade-4", "shade-5", "passage", "quote", "word"];

let hits = [];  // the marked results, see `asking`
let go = (_) => {};  // called with a hit whose mark is clicked

/** Return the set of ranges that the style sheet displays as ::highlight(name), if the browser supports highlights. */
export function marks(name) {
  if (!globalThis.Highlight) return new Set();
  if (!CSS.highlights.has(name)) CSS.highlights.set(name, Object.assign(new Highlight(), { priority: MARKS.indexOf(name) }));
  return CSS.highlights.get(name);
}

/** Return the range between two offsets in an element's text, across nested elements. */
export function range(element, start, end) {
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  /** @type {any} */ const made = {};
  let before = 0;
  for (let node = walker.nextNode(); node && !made.endContainer; node = walker.nextNode()) {
    const behind = before + node.nodeValue.length;
    if (!made.startContainer && start < behind) Object.assign(made, { startContainer: node, startOffset: start - before });
    if (made.startContainer && end <= behind) Object.assign(made, { endContainer: node, endOffset: end - before });
    before = behind;
  }
  return new StaticRange(made);
}

/** Set the ranges of groups near the view only, because the time to paint grows with the number of ranges. */
const groupsInView = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    for (const hit of hits) if (hit.chunk.group === target) (isIntersecting ? mark : unmark)(hit);
  }
}, { root: at("text"), rootMargin: "50%" });

/** Replace the marked hits; `onClick` is called with the hit whose mark on the strip is clicked. */
export function markHits(found, onClick) {
  groupsInView.disconnect();
  hits.forEach(unmark);
  for (const name of MARKS) marks(name).clear();
  document.querySelector(".chunk.here")?.classList.remove("here");
  [hits, go] = [found, onClick];
  for (const group of new Set(hits.map((hit) => hit.chunk.group))) groupsInView.observe(group);
  placeMarks();
}

function mark(hit) {
  unmark(hit);
  const { element, text } = hit.chunk;
  element.classList.add("hit-chunk");
  element.style.setProperty("--level", hit.level);
  hit.ranges = hit.words.map((word) => ["word", range(element, ...word)]);
  if (hit.passage) {
    const { start, end } = sentencesOf(text, hit.passage);
    const names = [`shade-${hit.level}`, ...(hit.isFaint ? [] : ["passage"])];
    hit.ranges.push(...names.map((name) => [name, range(element, start, end)]));
  }
  for (const [name, one] of hit.ranges) marks(name).add(one);
}

function unmark(hit) {
  if (hit.ranges) hit.chunk.element.classList.remove("hit-chunk");
  for (const [name, one] of hit.ranges ?? []) marks(name).delete(one);
  hit.ranges = null;
}

/** Place the mark of each hit on the strip. Groups out of view count with their estimated height. */
export function placeMarks() {
  const height = at("text").scrollHeight;
  const drawn = hits.map((hit) => {
    const { group, before } = hit.chunk;
    const place = (offsetIn(group) + (before / group.n_chars) * group.offsetHeight) / height;
    const drawnMark = make("i");
    drawnMark.style.top = `${(100 * place).toFixed(3)}%`;
    drawnMark.style.opacity = 0.15 + 0.17 * hit.level;
    drawnMark.addEventListener("click", () => go(hit));
    return drawnMark;
  });
  at("strip").replaceChildren(...drawn);
}

/** Update the marks when groups that come into view get their real height. */
export const sizes = new ResizeObserver(placeMarks);

const offsetIn = (group) => group.getBoundingClientRect().top - at("text").getBoundingClientRect().top + at("text").scrollTop;

/** Return the hits in the order of the text. */
export const inOrder = (found) => [...found].sort((one, other) => one.chunk.document.id - other.chunk.document.id || one.chunk.number - other.chunk.number);

let awaited = null;  // the element to scroll to when the text is displayed

export function bringAwaited() {
  if (awaited) bringIntoView(awaited);
}

/** Scroll to an element, and again after the groups around it have their real height. */
export async function bringIntoView(element) {
  awaited = at("text").offsetHeight ? null : element;
  if (awaited) return;
  for (let round = 0; round < 3; round += 1) {
    const pane = at("text").getBoundingClientRect();
    const { top, height } = element.getBoundingClientRect();
    const wanted = top - pane.top - Math.max(24, (pane.height - height) / 3);
    if (Math.abs(wanted) > 1) at("text").scrollBy({ top: wanted, behavior: "instant" });
    await nextFrame();
  }
}
