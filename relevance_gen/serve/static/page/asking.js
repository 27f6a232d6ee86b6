/** Turns: a turn is a question with its results and answers. */

import { answer, drawAnswers, hidePeek, LEAST_CONFIDENCE, nodesOf } from "./answering.js";
import { unitsOf } from "./chunking.js";
import { chooseScope, corpus, documents } from "./documents.js";
import { at, button, complain, counted, make, Problem, say } from "./dom.js";
import { queryOf } from "./following.js";
import { dropTurns, keepTurns } from "./keeping.js";
import { bringIntoView, inOrder, markHits } from "./marks.js";
import { itemOf, markExcerpt, passageOf } from "./passages.js";
import { choose } from "./view.js";
import { isViewing, showFile } from "./viewer.js";

const NAME = "relevance_gen";
const MOST_FOUND = 30;
const PROBABLE = 0.8;  // least confidence that is called probable
const FEW = 6;  // passages that are listed before the button for all is pressed

const CONDITIONS = /"|(?:^|\s)[+-]\S/;  // signs of a question that require or exclude words
const NO_MATCH = "No passage meets the conditions of this question. Remove quotation marks, + or -, or try other words.";
const NO_WORD = "No passage contains any of these words. Try other words, or check that the right documents are here.";

export let turns = [];  // in order of time
let thread = null;  // id of the displayed conversation, the id of its first turn; null before its first question
export let current = null;  // the displayed turn
let working = null;  // the AbortController of the running work

export function stopAll() {
  working?.abort();
  working = null;
  at("stop").hidden = true;
}

/** Run work that can be stopped; report its error unless other work has begun since, and call `onFailure` with it. */
async function work(doing, onFailure = /** @type {(error: any) => void} */ (() => {})) {
  stopAll();
  const mine = working = new AbortController();
  at("stop").hidden = false;
  try {
    await doing(mine.signal);
  } catch (error) {
    if (mine !== working && error.name === "AbortError" && working) return;
    say("");
    complain(error);
    onFailure(error);
  } finally {
    if (mine === working || !working) stopAll();
  }
}

/** Return the turns of the displayed conversation. */
export const inThread = () => turns.filter((turn) => turn.thread === thread);

const addressOf = ({ question, scope }) => `#q=${encodeURIComponent(question)}${scope === "all" ? "" : `&in=${encodeURIComponent(scope)}`}`;

export async function ask(question) {
  complain(null);
  choose("found");
  if (!question || !(documents.length || corpus().size)) {
    stopAll();
    complain(new Problem(question ? "Add a document first." : "Write a question first."));
    return;
  }
  const id = Math.max(Date.now(), 1 + (turns.at(-1)?.id ?? 0));
  const before = inThread().at(-1);
  thread ??= id;
  const turn = { id, thread, threadName: before?.threadName, question, query: queryOf(question, before?.query), scope: at("scope").value, corpus: corpus(), hits: [], answers: [], sources: [], status: "", pace: "", model: "", path: "" };
  const isInAddress = addressOf(turn) === location.hash;
  history[isInAddress ? "replaceState" : "pushState"]({ turn: turn.id }, "", addressOf(turn));
  show(turn);
  at("right").scrollTop = 0;
  await work(async (signal) => {
    say("Searching …");
    await search(turn, signal);
    turns.push(turn);
    show(turn);
    if (turn.hits.length) await answerTurn(turn, signal);
    else keep([turn]);
  }, (error) => {
    if (current !== turn) return;
    if (turns.includes(turn)) show(turn);
    at("again").hidden = turns.includes(turn) || !isTemporary(error);
  });
}

/** Return whether a request can succeed if it is repeated. */
const isTemporary = ({ name, status = 0 }) => name !== "AbortError" && (status < 400 || status >= 429);

/** Ask the displayed question again, whose search failed. */
export function askAgain() {
  at("question").value = current.question;
  chooseScope(current.scope);
  return ask(current.question);
}

async function search(turn, signal) {
  const fields = { query: turn.query, top_n: MOST_FOUND, true_order: false, spans: true, confidence: true, syntax: "operators" };
  const response = await turn.corpus.post("search", fields, signal);
  const { results, metadata } = await response.json();
  const ms = performance.now() - response.asked;
  turn.isFound = results.length > 0 && metadata.confidence >= LEAST_CONFIDENCE;
  turn.hits = results.map((result) => hitOf(turn, result, results[0].chunk_score));
  turn.confidence = results.length ? metadata.confidence : null;
  turn.status = [
    results.length ? `${results.length.toLocaleString("en")} of ${counted(turn.corpus.size, "passage")}` : "Nothing found",
    `${Math.ceil(ms)} ms`,
    ...Object.entries(metadata.corrections ?? {}).map(([word, replacement]) => `Showing results for “${replacement}” (no match for “${word}”)`),
  ].join(" · ");
}

/** Return a result with its display data; `level` is its score relative to the best, from 1 to 5. If the confidence of the
    search is low, the level is at most 2 and no words are marked. */
function hitOf(turn, result, best) {
  const units = unitsOf(result.chunk_txt);
  const [passage, ...words] = result.spans.map(({ start, end }) => [units(start), units(end)]);
  const level = Math.max(1, Math.ceil((5 * result.chunk_score) / best));
  return {
    chunk: turn.corpus.chunkOf(result), score: result.chunk_score,
    level: turn.isFound ? level : Math.min(level, 2), passage, words: turn.isFound ? words : [], isFaint: !turn.isFound,
  };
}

async function answerTurn(turn, signal, options = {}) {
  const before = turns.filter(({ id, thread: other, path, model }) => other === turn.thread && id < turn.id && path === "/v1/chat/completions" && model);
  const counts = await answer(turn, { ...options, before, signal, go: goToChunk });
  if (counts && current === turn) drawAnswers(turn, goToChunk);
  keep([turn]);
}

/** Answer the displayed question again: with `again` at a higher temperature, or in another `mode`, see `answer`. */
export function reanswer({ again = false, mode = current?.mode } = {}) {
  const turn = current;
  if (!turn) return;
  turn.mode = mode;
  work((signal) => answerTurn(turn, signal, { again }));
}

// ── Display ────────────────────

/** Display a turn, or none for null; earlier turns are listed below it, collapsed. */
export function show(turn) {
  for (const hit of current?.hits ?? []) hit.button = hit.excerpt = null;  // `itemOf` makes these elements again
  current = turn;
  thread = turn?.thread ?? thread;
  hidePeek();
  const { hits = [], status = "" } = turn ?? {};
  say(status);
  at("hint").hidden = turn !== null;
  at("asked").textContent = turn?.question ?? "";
  document.title = turn ? `${turn.question} – ${NAME}` : NAME;
  at("nothing").textContent = CONDITIONS.test(turn?.question ?? "") ? NO_MATCH : NO_WORD;
  at("nothing").hidden = !turn || !status || hits.length > 0 || Boolean(turn.removedName);
  at("answer").hidden = true;
  at("searched").textContent = `Searched for: ${turn?.query}`;
  at("searched").hidden = !turn?.query || turn.query === turn.question;
  showVerdict(turn);
  at("passages").hidden = !hits.length;
  at("found-title").textContent = turn?.isFound === false ? "Closest passages" : "Passages";
  at("found").replaceChildren(...hits.map((hit, place) => itemOf(turn, hit, place, goTo)));
  listAll(hits.length <= FEW + 2);
  markHits(hits, goTo);
  hits.forEach(markExcerpt);
  at("steps").hidden = !hits.length;
  if (hits.length) goTo(hits[0], { quietly: true });
  if (hits.length && turn.answers.length) drawAnswers(turn, goToChunk);
  else at("answers").removeAttribute("aria-busy");
  drawEarlier();
}

/** Display in words how probable it is that the passages contain an answer. */
function showVerdict(turn) {
  const { confidence = null, hits = [] } = turn ?? {};
  at("verdict").hidden = confidence === null || !hits.length;
  if (confidence === null) return;
  const grade = confidence >= PROBABLE ? "Probably" : confidence >= LEAST_CONFIDENCE ? "Perhaps" : "Probably not";
  at("verdict").textContent = `${grade} answered in these documents`;
  at("verdict").title = `Confidence ${confidence.toFixed(2)}`;
}

/** List all passages, or the best few and a button that lists all. */
export function listAll(isAll) {
  const items = [...at("found").children];
  items.forEach((item, place) => { item.hidden = !isAll && place >= FEW; });
  at("more").hidden = isAll;
  at("more").textContent = `All ${items.length} passages`;
}

function drawEarlier() {
  const others = inThread().filter((turn) => turn !== current).reverse();
  at("threads").hidden = !turns.length;
  at("earlier").hidden = !others.length;
  at("earlier-turns").replaceChildren(...others.map((turn) => {
    const folded = make("details", {}, make("summary", { className: "asked-before" }, turn.question));
    folded.addEventListener("toggle", () => {
      if (!folded.open) return folded.replaceChildren(folded.firstChild);
      if (folded.children.length > 1) return;
      const texts = turn.answers.map((_, number) => make("div", { className: "sample" }, ...nodesOf(turn, number, (chunk) => { show(turn); goToChunk(chunk); })));
      folded.append(...texts, button("Show passages", () => { stopAll(); show(turn); at("right").scrollTop = 0; }));
    });
    return make("li", {}, folded);
  }));
}

/** Scroll to a hit and display its number. `quietly`: do not switch the view of a narrow screen. */
export function goTo(hit, { quietly = false } = {}) {
  if (!quietly) {
    if (document.body.dataset.view !== "document") history.pushState({ turn: current.id, view: "document" }, "");
    choose("document");
  }
  document.querySelector(".chunk.here")?.classList.remove("here");
  hit.chunk.element.classList.add("here");
  for (const one of current.hits) one.button.toggleAttribute("aria-current", one === hit);
  hit.button.setAttribute("aria-current", "true");
  const ordered = inOrder(current.hits);
  at("step").textContent = `Mark ${ordered.indexOf(hit) + 1} of ${ordered.length}`;
  if (!quietly && isViewing() && hit.chunk.document.file) showFile(hit.chunk.document, hit.chunk.place.page, passageOf(hit));
  else {
    if (!quietly) showFile(null);
    bringIntoView(hit.chunk.element);
  }
}

function goToChunk(chunk) {
  const hit = current.hits.find((one) => one.chunk === chunk);
  if (hit) goTo(hit);
}

/** Go to the next mark in the text, or to the previous mark for -1. */
export function step(by) {
  if (!current?.hits.length) return;
  const ordered = inOrder(current.hits);
  const here = ordered.findIndex((hit) => hit.button.hasAttribute("aria-current"));
  goTo(ordered[(here + by + ordered.length) % ordered.length]);
}

/** Restore the turn and the view of an entry of the browser's history. @param {any} state */
export function goBack({ turn: id, view } = {}) {
  const turn = turns.find((one) => one.id === id) ?? current;
  if (turn && turn !== current) {
    stopAll();
    revisit(turn);
  }
  choose(view ?? "found");
}

/** Display an earlier turn with its question and scope; search again if its results are missing. */
export function revisit(turn) {
  at("question").value = turn.question;
  const isThere = chooseScope(turn.scope);
  show(turn);
  if (turn.status) return;
  if (!isThere) say("These results are no longer available.");
  else work(async (signal) => {
    turn.corpus = corpus();
    await search(turn, signal);
    if (current === turn) show(turn);
  });
}

/** Remove the turns that have results in the example, which gives way to the documents of the user. */
export function forgetExample(example) {
  const isAbout = (turn) => turn?.hits.some((hit) => hit.chunk.document === example);
  dropTurns(turns.filter(isAbout).map(({ id }) => id));
  turns = turns.filter((turn) => !isAbout(turn));
  if (!isAbout(current)) return drawEarlier();
  stopAll();
  history.replaceState(null, "", location.pathname + location.search);
  show(null);
}

/** Remove the results in a document that was removed, and report it in the status of their turns. */
export function forgetDocument(removed) {
  for (const turn of turns) {
    const hits = turn.hits.filter((hit) => hit.chunk.document !== removed);
    if (hits.length < turn.hits.length) {
      Object.assign(turn, { removedName: removed.name, confidence: null });
      turn.status = `${hits.length ? `${counted(hits.length, "passage")} left` : "No passage left"}: ${removed.name} was removed. Ask again to search the other documents.`;
    }
    turn.hits = hits;
    if (turn.sources.some((source) => source.chunk.document === removed)) turn.sources = [];
  }
  if (current) show(current);
  keep(turns);
}

// ── Storage ────────────────────

const kept = ({ chunk, ...rest }) => ({ ...rest, from: [chunk.document.id, chunk.number] });

function keep(changed) {
  return keepTurns(changed.map(({ corpus: _, hits, sources, ...turn }) => ({
    ...turn, sources: sources.map(kept),
    hits: hits.map(({ chunk, score, level, passage, words, isFaint }) => kept({ chunk, score, level, passage, words, isFaint })),
  })));
}

/** Restore stored turns, whose documents are loaded. */
export function restore(saved) {
  const byId = new Map(documents.map((one) => [one.id, one]));
  const back = (places) => places.map(({ from: [id, number], ...rest }) => ({ ...rest, chunk: byId.get(id)?.chunks[number] })).filter((one) => one.chunk);
  turns = saved.map((turn) => {
    chooseScope(turn.scope);
    const [hits, sources] = [back(turn.hits), back(turn.sources)];
    const status = hits.length === turn.hits.length ? turn.status : "";  // the status describes results that are missing
    return { query: turn.question, thread: saved[0].id, ...turn, corpus: corpus(), hits, status, sources: sources.length === turn.sources.length ? sources : [] };
  });
  thread = turns.at(-1)?.thread ?? null;
  chooseScope("all");
}

export function forgetTurns() {
  turns = [];
  beginThread();
}

// ── Conversations ────────────────────

/** Begin a conversation without questions. */
export function beginThread() {
  stopAll();
  complain(null);
  thread = null;
  history.replaceState(null, "", location.pathname + location.search);
  show(null);
}

/** Return the conversations, newest first; a conversation without a name has its first question as its name. */
export function listThreads() {
  const byId = new Map();
  for (const { thread: id, threadName, question } of turns) {
    const known = byId.get(id) ?? { id, name: question, questions: [] };
    byId.set(id, { ...known, name: threadName ?? known.name, questions: [...known.questions, question] });
  }
  return [...byId.values()].reverse();
}

/** Display the last turn of a conversation. */
export function openThread(id) {
  stopAll();
  const turn = turns.findLast((one) => one.thread === id);
  history.pushState({ turn: turn.id }, "", addressOf(turn));
  revisit(turn);
}

export function renameThread(id, name) {
  const renamed = turns.filter((turn) => turn.thread === id);
  for (const turn of renamed) turn.threadName = name;
  keep(renamed);
}

export function removeThread(id) {
  dropTurns(turns.filter((turn) => turn.thread === id).map((turn) => turn.id));
  turns = turns.filter((turn) => turn.thread !== id);
  if (id === thread) beginThread();
  else drawEarlier();
}
