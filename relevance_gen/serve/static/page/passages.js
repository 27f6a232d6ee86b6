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
  const element = make("span", { className: "excerpt" }, isCut ? ELLIPSIS : null, ...reading(text.slice(from, to), document.kind, { isFenced }), to < text.length ? "…" : null);
  element.classList.toggle("code", document.kind === "code");
  hit.excerpt = { from, to, isCut, element };
  const score = make("span", { className: "score numbers", textContent: hit.score.toFixed(2) });
  score.setAttribute("aria-label", `Passage ${place + 1}, score ${hit.score.toFixed(2)}.`);
  hit.button = button(score, () => go(hit), { className: "hit" });
  hit.button.append(element);
  hit.button.style.setProperty("--level", hit.level);
  const why = make("details", {}, make("summary", {}, make("span", { textContent: "Why" })));
  why.addEventListener("toggle", () => { if (why.open) explain(turn, hit, why); });
  return make("li", {}, hit.button, make("div", { className: "under" }, whereOf(hit.chunk), why));
}

/** Return the source of a chunk: its document if there are several, and its page. */
function whereOf({ document: from, place }) {
  const words = placeOf(place);
  const name = documents.length > 1 || from.isOffered ? make("span", { className: "from", dir: "auto", textContent: from.name, title: from.name }) : null;
  return make("span", { className: "where" }, name, words ? pageOf(from, place, words) : null);
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

const PARTS = {
  bigrams: "adjacent words", coverage: "words close together", lead: "words at the beginning",
  phrase: "a sequence of words", title: "the title", char_ngrams: "shared letter sequences", top_similarity: "similarity to the best passages",
  neighbors: "the passages next to it", semantic: "similar meaning", reranker: "the reranker",
};

/** Request the explanation of a score once, and display it as a sentence and a table. */
async function explain(turn, hit, why) {
  if (why.querySelector("table")) return;
  try {
    const fields = { query: turn.question, original_index: turn.corpus.positionOf(hit.chunk), syntax: "operators" };
    const found = await (await turn.corpus.post("explain", fields)).json();
    why.append(make("p", { textContent: sentenceOf(found, turn.corpus.size, hit === turn.hits[0]) }), tableOf(found));
  } catch (error) {
    why.open = false;
    complain(error);
  }
}

const added = (parts) => Object.entries(PARTS).map(([name, said]) => [said, parts[name] ?? 0]).filter(([, share]) => share > 0);

/** Return one sentence with the largest contributions to a score: the best words, and other large parts. */
function sentenceOf({ score, terms, ...parts }, n, isBest) {
  const most = Math.max(...terms.map((term) => term.contribution));
  const words = terms.filter(({ contribution }) => contribution > 0 && contribution > most / 2).slice(0, 4).map(({ term, df }) => [`“${term}”`, df]);
  const inAll = new Set(words.map(([, df]) => df)).size === 1;
  const said = words.map(([term, df]) => inAll ? term : `${term} (in ${df.toLocaleString("en")})`);
  const others = added(parts).filter(([name, share]) => share > 0.1 * score && !(isBest && name === PARTS.top_similarity)).map(([name]) => name);
  const list = new Intl.ListFormat("en");
  if (!words.length) return others.length ? `Because of ${list.format(others)}.` : "Because of many small contributions.";
  const how = inAll ? `, ${words.length > 1 ? "each " : ""}in ${words[0][1].toLocaleString("en")}` : "";
  return `It has ${list.format(said)}${how} of ${counted(n, "chunk")}${others.length ? `, and ${list.format(others)}` : ""}.`;
}

function tableOf({ score, terms, ...parts }) {
  const words = terms.filter((term) => term.contribution > 0).map(({ term, matches, df, contribution }) => {
    const others = matches.filter((match) => match !== term).slice(0, 3);
    return [others.length ? `${term} (${others.join(", ")})` : term, df.toLocaleString("en"), contribution];
  });
  const rest = added(parts).map(([said, share]) => [said, "", share]);
  const rows = [...words, ...rest].sort((one, other) => other[2] - one[2]).map(([name, df, share]) => {
    const bar = make("i");
    bar.style.setProperty("--share", (share / score).toFixed(4));
    return make("tr", {},
      make("td", { textContent: name }), make("td", { className: "number numbers", textContent: df }),
      make("td", { className: "number numbers", textContent: share.toFixed(3) }), make("td", { className: "share" }, bar));
  });
  const heads = ["Reason", "in chunks", "adds", ""].map((text, place) =>
    place < 3 ? make("th", { scope: "col", className: place ? "number" : "", textContent: text }) : make("td"));
  return make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows));
}
