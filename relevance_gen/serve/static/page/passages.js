/** The list of results, and the explanation of a score. */

import { sentencesOf } from "./chunking.js";
import { button, complain, counted, make } from "./dom.js";
import { pageOf, placeOf, documents } from "./documents.js";
import { marks, range } from "./marks.js";
import { reading } from "./reading.js";

const EXCERPT = 240;  // characters; longer if the sentences of the passage are longer
const ELLIPSIS = "… ";  // before an excerpt that begins inside a sentence

/** Create the list item of a hit and set `hit.button`; `go` is called when the button is pressed. */
export function itemOf(turn, hit, place, go) {
  const { from, to, isCut } = excerptOf(hit);
  const { text, document, isFenced } = hit.chunk;
  const element = make("span", { className: "excerpt" }, isCut ? ELLIPSIS : null, ...reading(text.slice(from, to), document.kind, { isFenced }), to < text.length ? " …" : null);
  element.classList.toggle("code", document.kind === "code");
  hit.excerpt = { from, to, isCut, element };
  const score = make("span", { className: "score numbers", textContent: hit.score.toFixed(2) });
  score.setAttribute("aria-label", `Passage ${place + 1}, score ${hit.score.toFixed(2)}.`);
  hit.button = button(score, () => go(hit), { className: "hit" });
  hit.button.append(element);
  hit.button.style.setProperty("--level", hit.level);
  const why = make("details", {}, make("summary", {}, make("span", { textContent: "Why" })));
  why.addEventListener("toggle", () => { if (why.open) explain(turn, hit, why); });
  return make("li", {}, hit.button, make("div", { className: "under" }, whereOf(hit), why));
}

/** Return the source of a chunk: its document if there are several, and its page. */
function whereOf(hit) {
  const { document: from, place } = hit.chunk;
  const words = placeOf(place);
  const name = documents.length > 1 || from.isOffered ? make("span", { className: "from", dir: "auto", textContent: from.name, title: from.name }) : null;
  return make("span", { className: "where" }, name, words ? pageOf(from, place, words, passageOf(hit)) : null);
}

/** Return the sentences of the best passage of a hit; "" without a passage. */
export function passageOf({ chunk: { text }, passage }) {
  if (!passage) return "";
  const { start, end } = sentencesOf(text, passage);
  return text.slice(start, end);
}

/** Return the part of a chunk that begins with the sentence of its best passage and contains the whole passage. */
export function excerptOf({ chunk: { text }, passage }) {
  const { start, end, isCut } = sentencesOf(text, passage ?? [0, 0]);
  const most = Math.min(text.length, Math.max(start + EXCERPT, passage ? end : 0));
  const space = text.lastIndexOf(" ", most);
  const to = most === text.length || most === end || space < most - EXCERPT / 4 ? most : space;
  return { from: start, to: text.codePointAt(to - 1) > 0xffff ? to + 1 : to, isCut };
}

/** Mark the words of an excerpt, and the sentences of its passage. */
export function markExcerpt({ chunk: { text }, passage, isFaint, excerpt: { from, to, isCut, element }, words }) {
  const before = from - (isCut ? ELLIPSIS.length : 0);
  for (const [start, end] of words) {
    if (start >= from && end <= to) marks("word").add(range(element, start - before, end - before));
  }
  if (!passage || isFaint) return;
  const { start, end } = sentencesOf(text, passage);
  marks("quote").add(range(element, start - before, end - before));
}

const MOST_REASONS = 6;  // rows of the table of an explanation
/** @type {[string, string[]][]} */
const REASONS = [
  ["words close together", ["bigrams", "coverage", "phrase"]], ["words near the start", ["lead"]], ["words in the title", ["title"]],
  ["similar spelling", ["char_ngrams"]], ["the passages next to it", ["neighbors"]], ["similar meaning", ["semantic"]], ["the reranker", ["reranker"]],
];

/** Request the explanation of a score once, and display it as a sentence and a table. */
async function explain(turn, hit, why) {
  if (why.querySelector("table")) return;
  try {
    const fields = { query: turn.query ?? turn.question, original_index: turn.corpus.positionOf(hit.chunk), syntax: "operators" };
    const found = await (await turn.corpus.post("explain", fields)).json();
    why.append(make("p", { textContent: sentenceOf(found, turn.corpus.size) }), tableOf(reasonsOf(found), found.score));
  } catch (error) {
    why.open = false;
    complain(error);
  }
}

/** @param {any} explanation */
const partsOf = (explanation) => REASONS.map(([name, parts]) => ({ name, found: "", points: parts.reduce((sum, part) => sum + (explanation[part] ?? 0), 0) }))
  .filter(({ points }) => points > 0);

/** Return the reasons of a score, largest first. The similarity to the top results is similarity in the same words, so it is
    distributed over the other reasons in proportion, and the points add up to the score. */
export function reasonsOf({ terms, top_similarity: similarity = 0, ...parts }) {
  const words = terms.filter(({ contribution }) => contribution > 0).map(({ term, matches, df, contribution }) => {
    const others = matches.filter((match) => match !== term).slice(0, 3);
    return { name: others.length ? `${term} (${others.join(", ")})` : term, found: df.toLocaleString("en"), points: contribution };
  });
  const reasons = [...words, ...partsOf(parts)];
  const total = reasons.reduce((sum, { points }) => sum + points, 0);
  if (!total) return [{ name: "similarity to the top passages", found: "", points: similarity }];
  return reasons.map((reason) => ({ ...reason, points: reason.points * (1 + similarity / total) })).sort((one, other) => other.points - one.points);
}

/** Return one or two sentences with the largest contributions to a score: the best words, and other large parts. */
function sentenceOf({ score, terms, ...parts }, n) {
  const most = Math.max(...terms.map((term) => term.contribution));
  const words = terms.filter(({ contribution }) => contribution > 0 && contribution > most / 2).slice(0, 4);
  const others = partsOf(parts).filter(({ points }) => points > 0.1 * score).map(({ name }) => name);
  const list = new Intl.ListFormat("en");
  const names = words.map(({ term, df }, place) => `“${term}” (in ${place ? df.toLocaleString("en") : `${df.toLocaleString("en")} of ${counted(n, "passage")}`})`);
  const sentences = [names.length ? `Contains ${list.format(names)}.` : "", others.length ? `Also counted: ${list.format(others)}.` : ""];
  return sentences.filter(Boolean).join(" ") || "Many small contributions.";
}

function tableOf(reasons, score) {
  const others = reasons.slice(MOST_REASONS);
  const shown = [...reasons.slice(0, MOST_REASONS), ...(others.length ? [{ name: "others", found: "", points: others.reduce((sum, { points }) => sum + points, 0) }] : [])];
  const rows = shown.map(({ name, found, points }) => {
    const bar = make("i");
    bar.style.setProperty("--share", (points / score).toFixed(4));
    return make("tr", {},
      make("td", { textContent: name }), make("td", { className: "number numbers", textContent: found }),
      make("td", { className: "number numbers", textContent: points.toFixed(3) }), make("td", { className: "share" }, bar));
  });
  const heads = ["Reason", "Found in", "Points", ""].map((text, place) =>
    place < 3 ? make("th", { scope: "col", className: place ? "number" : "", textContent: text }) : make("td"));
  return make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows));
}
