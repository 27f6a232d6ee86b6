/** Answers: the request to the model, the stream of its text, and the description of the model. */

import { at, button, counted, make, Problem } from "./dom.js";
import { placeOf } from "./documents.js";
import { unitsOf } from "./chunking.js";
import { inline, mark, markdown } from "./markdown.js";
import { reading } from "./reading.js";
import { chosenFields, instructionMessages } from "./settings.js";
import { CUT, eventsOf, listModels, post, sentence } from "./server.js";

export const LEAST_CONFIDENCE = 0.6;  // least confidence of a search for which an answer is generated
const VARIED = { temperature: 0.8, top_p: 0.95 };  // at temperature 0 all answers would be the same
const MOST_BEFORE = 3;  // earlier questions that are sent to a chat model
const MOST_CHARS = 1500;  // maximum length of an earlier answer

const NO_ANSWER = "No answer found. These passages are the closest.";

let lastForm = "";  // form of the last answer, which the next answer probably has

/** Answer a turn's question; return whether no later run has replaced this one. `before`: the earlier turns for the model.
    `go(chunk)` shows one of its sources. The turn's `form` becomes "written", or "quoted" if the model only copies a
    sentence, or "none" if the server has no model. Below the least confidence no answer is generated, unless the turn's
    `mode` is "anyway", or "summary" for a summary of the passages. */
export async function answer(turn, { before, signal, go, again = false }) {
  const samples = Number(at("samples").value);
  const run = (turn.run ?? 0) + 1;  // a later run replaces the results of an earlier run
  Object.assign(turn, { run, answers: Array(samples).fill(""), citations: [], sources: [], pace: "", path: "", isFailed: false, form: turn.form || lastForm, isAnswered: true });
  drawAnswers(turn, go, { isRunning: true });
  let [isOver, begun] = [false, null];
  const draw = frameByFrame(() => { if (!isOver && turn.run === run) drawAnswers(turn, go, { isRunning: true }); });
  const write = (sample, text) => {
    if (turn.run !== run) return;
    begun ??= performance.now();
    at("waiting").hidden = true;
    turn.answers[sample] += turn.answers[sample] ? text : text.trimStart();
    draw();
  };
  try {
    const chosen = at("model-choice").value;  // "" until the models are listed
    const asked = { question: turn.query, min_confidence: turn.mode ? 0 : LEAST_CONFIDENCE, syntax: "operators", ...(chosen && { model: chosen }) };
    const { sources, path, request, found } = await (await turn.corpus.post("prompt", asked, signal)).json();
    turn.sources = sources.map((source) => ({ chunk: turn.corpus.chunkOf(source), start: source.start, end: source.end })).filter(({ chunk }) => chunk);
    if (turn.mode === "summary") request.messages = summaryOf(turn.sources);
    turn.path = path;
    turn.form = lastForm = request.choice ? "quoted" : "written";
    turn.isAnswered = found;
    const models = found ? await listModels() : [];
    if (found) offerModels(models);
    turn.model = models.includes(chosen) ? chosen : models[0] ?? "";
    if (!found) turn.answers = [NO_ANSWER];
    else if (turn.form === "quoted") quote(turn, request.choice[0].trim());
    else {
      drawAnswers(turn, go, { isRunning: true, isNew: true });
      const varied = samples > 1 || again ? VARIED : {};
      const isWaiting = () => !begun && !isOver && turn.run === run && drawn === turn;
      const stopWaiting = wait(counted(turn.sources.length, "passage"), isWaiting);
      const usage = await WRITERS[path]({ ...request, ...varied, ...chosenFields() }, { n: samples, write, signal, before }).finally(stopWaiting);
      if (turn.run === run) turn.pace = paceOf(usage, performance.now() - (begun ?? performance.now()));
      const citations = await citationsOf(turn, signal).catch(() => []);  // too much text, or stopped: the answer is shown without citations
      if (turn.run === run) turn.citations = citations;
    }
  } catch (error) {
    if (turn.run === run) {
      const isSearchOnly = error.status === 503 && !(await listModels()).length;
      if (isSearchOnly) turn.form = lastForm = "none";
      turn.isFailed = error.name !== "AbortError" && !isSearchOnly;
      turn.pace = !turn.isFailed ? "Stopped" : error instanceof Problem ? error.message : String(error);
    }
  }
  isOver = true;
  return turn.run === run;
}

/** Display the seconds of the wait for the first word, while the model processes the prompt; return a function that ends it. */
function wait(passages, isWaiting) {
  const started = performance.now();
  const timer = setInterval(() => {
    at("waiting").hidden = !isWaiting();
    at("waiting").textContent = `Reading ${passages} … ${Math.round((performance.now() - started) / 1000)} s`;
  }, 1000);
  return () => {
    clearInterval(timer);
    at("waiting").hidden = true;
  };
}

/** Return the messages that request a summary of the sources. */
function summaryOf(sources) {
  const texts = sources.map(({ chunk: { text }, start, end }, place) => `[${place + 1}] ${text.slice(unitsOf(text)(start), unitsOf(text)(end))}`);
  return [{ role: "user", content: ["Summarize the sources below in a few sentences.", ...texts].join("\n\n") }];
}

/** Set the sentence of the first source as the answer. */
function quote(turn, text) {
  turn.answers = [text];
  turn.citations = [[{ start: 0, end: text.length, spans: [{ source: 0, start: 0, end: text.length }] }]];
}

/** Offer a choice of models if there are several. */
function offerModels(names) {
  const choice = at("model-choice");
  const chosen = choice.value;
  choice.replaceChildren(...names.map((name) => make("option", { value: name, textContent: name })));
  if (names.includes(chosen)) choice.value = chosen;
  at("model-label").hidden = names.length < 2;
}

/** Return for each answer the ranges of its sentences, and the ranges of the sources that support them. */
async function citationsOf({ answers, sources }, signal) {
  const chunk_txts = sources.map(({ chunk }) => chunk.text);
  return Promise.all(answers.map(async (text) => {
    const { citations } = await (await post("cite", JSON.stringify({ text, chunk_txts }), signal)).json();
    const [units, ofSources] = [unitsOf(text), chunk_txts.map(unitsOf)];
    return citations.map(({ start, end, spans }) => ({
      start: units(start), end: units(end),
      spans: spans.map(({ source, start: first, end: last }) => ({ source, start: ofSources[source](first), end: ofSources[source](last) })),
    }));
  }));
}

/** Path of the interface to the function that requests several samples there and writes their text as it arrives. */
const WRITERS = {
  async "/generate"(request, { n, write, signal }) {
    const response = await post("generate_stream", JSON.stringify({ ...request, num_samples: n }), signal);
    let usage = null;
    for await (const [name, data] of eventsOf(response)) {
      if (name === "text") write(data.sample, data.text);
      else if (name === "error") throw new Problem(sentence(data.error.message));
      else usage = { nTokens: data.responses.reduce((sum, one) => sum + one.generated_tokens, 0), isLong: data.responses.some((one) => one.finish_reason === "length") };
    }
    return complete(usage);
  },
  async "/v1/chat/completions"(request, { n, write, signal, before }) {
    const fields = { ...request, n, stream: true, stream_options: { include_usage: true } };
    const response = await chat(fields, before, signal);
    let [usage, isLong] = [null, false];
    for await (const [, data] of eventsOf(response)) {
      if (data.error) throw new Problem(sentence(data.error.message));
      for (const { index, delta, finish_reason } of data.choices) {
        if (delta.content) write(index, delta.content);
        isLong ||= finish_reason === "length";
      }
      if (data.usage) usage = { nTokens: data.usage.completion_tokens, isLong };
    }
    return complete(usage);
  },
};

/** Request a chat with the earlier questions and answers; without them if they do not fit into the context. */
async function chat(fields, before, signal) {
  const earlier = before.slice(-MOST_BEFORE).flatMap(({ question, answers }) => [
    { role: "user", content: question }, { role: "assistant", content: answers[0].slice(0, MOST_CHARS) },
  ]);
  const ask = (messages) => post("v1/chat/completions", JSON.stringify({ ...fields, messages: [...instructionMessages(), ...messages] }), signal);
  if (!earlier.length) return ask(fields.messages);
  try {
    return await ask([...earlier, ...fields.messages]);
  } catch (error) {
    if (error.status !== 400) throw error;
    return ask(fields.messages);
  }
}

function complete(usage) {
  if (usage === null) throw new Problem(CUT);
  return usage;
}

/** Return the number of tokens, and their rate after the first token, without the time to process the prompt. */
export function paceOf({ nTokens, isLong }, ms) {
  const rate = nTokens > 1 && ms > 1 ? `${Math.round((1000 * (nTokens - 1)) / ms).toLocaleString("en")} tokens/s` : "";
  return [counted(nTokens, "token"), rate, isLong ? "stopped at the length limit" : ""].filter(Boolean).join(" · ");
}

/** Return a function that calls `draw` once in the next frame, for any number of calls before. */
function frameByFrame(draw) {
  let isComing = false;
  return () => {
    if (isComing) return;
    isComing = true;
    requestAnimationFrame(() => { isComing = false; draw(); });
  };
}

// ── Display ────────────────────

let drawn = null;  // the turn whose answers are displayed

export function isDrawn(turn) {
  return drawn === turn;
}

/** Display the text of a turn's answers that has arrived, and their sources. */
export function drawAnswers(turn, go, { isRunning = false, isNew = isRunning && turn.answers.every((text) => !text) } = {}) {
  if (isRunning && !isNew && drawn !== turn) return;  // another turn is displayed now
  drawn = turn;
  arrange(turn);
  at("answers").toggleAttribute("data-many", turn.answers.length > 1);
  if (isRunning) at("answers").setAttribute("aria-busy", "true");  // a screen reader reads the complete answer, not each word
  else at("answers").removeAttribute("aria-busy");
  at("answers").replaceChildren(...turn.answers.map((_, number) => make("div", { className: `sample${isRunning ? " running" : ""}` }, ...nodesOf(turn, number, go))));
  at("samples-label").hidden = turn.form !== "written" || (!isRunning && !turn.model);
  at("instead").hidden = isRunning || turn.isAnswered || turn.path !== "/v1/chat/completions";
  at("settings").hidden = at("samples-label").hidden;
  at("retry").hidden = at("samples-label").hidden && !turn.isFailed;
  at("copy").hidden = isRunning || turn.isAnswered === false || !turn.answers.some(Boolean);
  at("pace").textContent = turn.pace;
  at("pace").classList.toggle("wrong", Boolean(turn.isFailed));
  if (!isRunning || isNew || at("given").children.length !== turn.sources.length) drawSources(turn, go);
  drawModel(turn);
  if (!peeked?.isConnected) hidePeek();
}

/** Arrange the pane for the form of a turn's answer: a quoted answer is the first passage, which is shown large. */
function arrange({ form, mode, isAnswered, isFailed }) {
  const isQuoted = form === "quoted" && isAnswered && !isFailed;
  at("answer").hidden = isQuoted || (!isFailed && (!form || form === "none"));
  at("answer-title").hidden = !isAnswered;
  at("answer-title").textContent = mode === "summary" ? "Summary" : "Answer";
  at("found").classList.toggle("quoted", isQuoted);
  const parent = at(isQuoted ? "passages" : "answer");
  if (at("model").parentElement === parent) return;
  const focused = /** @type {HTMLElement} */ (document.activeElement);
  parent.append(at("model"));
  parent.querySelector(".bar").append(at("controls"));
  if (at("controls").contains(focused)) focused.focus();
}

/** Return the nodes of an answer with the numbers of its sources: Markdown of a chat model, otherwise plain text. */
export function nodesOf(turn, number, go) {
  const places = [];
  const text = withMarks(turn, number, (place) => mark(places.push(place) - 1));
  const cite = {
    source: (one) => citation(turn, one, go),
    mark: (one) => places[one] ? citation(turn, places[one].source + 1, go, places[one]) : make("span", { className: "unfound", title: "Not found in the passages", role: "img", ariaLabel: "Not found in the passages" }, "?"),
  };
  if (turn.path === "/v1/chat/completions") {
    const nodes = markdown(text, cite);
    if (nodes.length) return nodes;
  }
  const kind = turn.form === "quoted" ? turn.sources[0]?.chunk.document.kind ?? "text" : "code";
  return text.split(/(?<=\uE001)/).flatMap((part) => [...reading(part.split("\uE000")[0], kind), ...inline(part.match(/\uE000.*$/s)?.[0] ?? "", cite)]);
}

/** Return an answer in which each sentence is followed by `write(span)` for each span that supports it, or by `write(null)`
    if none does. A source whose number the sentence contains is not repeated. */
export function withMarks({ answers, citations = [] }, number, write) {
  const text = answers[number];
  let [marked, last] = ["", 0];
  for (const { start, end, spans } of citations[number] ?? []) {
    const first = spans.filter(({ source }, at) => spans.findIndex((one) => one.source === source) === at);
    const sentence = text.slice(start, end);
    const wanted = first.filter(({ source }) => !sentence.includes(`[${source + 1}]`));
    const stop = end + text.slice(end).match(/^[*_`]*/)[0].length;  // closing marks of Markdown belong to the sentence
    marked += text.slice(last, stop) + (spans.length ? wanted.map(write).join("") : write(null));
    last = stop;
  }
  return marked + text.slice(last);
}

/** List the chunks of the prompt by their numbers. */
function drawSources(turn, go) {
  const links = turn.sources.map((_, place) => citation(turn, place + 1, go));
  at("given").hidden = !links.length || turn.isAnswered === false;
  at("given").replaceChildren(links.length === 1 ? "Source: " : "Sources: ", ...links);
}

/** Return a button with the number of a source, which shows the source's text, or its range `place`, when it is hovered or
    focused; null if there is no such source. */
function citation(turn, number, go, place = null) {
  const source = turn.sources[number - 1];
  if (!source) return null;
  const made = button(String(number), () => { hidePeek(); go(source.chunk); }, { className: "cite numbers", label: `Passage ${number}` });
  made.setAttribute("aria-describedby", "peek");
  // Not mouseenter: it also fires if a number appears below a resting pointer.
  for (const kind of ["mousemove", "focus"]) made.addEventListener(kind, () => peek(made, source.chunk, place));
  for (const kind of ["mouseleave", "blur"]) made.addEventListener(kind, hidePeek);
  return made;
}

let peeked = null;  // the button whose source is displayed

function peek(target, { text: all, document: from, place: part, isFenced }, place) {
  if (peeked === target && !at("peek").hidden) return;
  const text = place ? all.slice(place.start, place.end) : all;
  const where = [from.name, placeOf(part)].filter(Boolean).join(", ");
  at("peek").replaceChildren(make("b", { textContent: where }), make("span", {}, ...reading(text.slice(0, 400), from.kind, { isFenced }), text.length > 400 ? "…" : null));
  at("peek").hidden = false;
  peeked = target;
  const [box, own] = [target.getBoundingClientRect(), at("peek").getBoundingClientRect()];
  const below = box.bottom + 8 + own.height < innerHeight;
  at("peek").style.top = `${Math.max(8, below ? box.bottom + 8 : box.top - 8 - own.height)}px`;
  at("peek").style.left = `${Math.max(8, Math.min(box.left - 16, innerWidth - own.width - 8))}px`;
}

export function hidePeek() {
  at("peek").hidden = true;
}

/** Describe the model that wrote an answer, its limits, and how to get a better answer. */
function drawModel({ model, path, form, answers, isAnswered }) {
  at("model").hidden = !model || !isAnswered || !answers.some(Boolean);
  const name = model === "relevance_gen" ? "the built-in model" : model;
  const [title, more] = form === "quoted"
    ? [`Quoted from your documents by ${name}`, "It quotes the closest sentences. It cannot summarize, compare or draw conclusions."]
    : path === "/generate"
      ? [`Continued by ${name}`, "This model continues text and was not trained to chat. Check the passages."]
      : [`Written by ${name} from the passages`, "It may be wrong. The numbers link to the passages it was given. It also received the last questions and answers."];
  at("model-name").textContent = title;
  at("model-more").textContent = more;
  at("model-better").hidden = path !== "/generate";
}
