/** Entry point: handles the input of the user, and restores the state when the page opens. */

import { isDrawn } from "./answering.js";
import * as asking from "./asking.js";
import { addDocument, addFiles, chooseScope, documents, EXAMPLE_ID, listeners, listScopes, removeDocument } from "./documents.js";
import { all, at, complain } from "./dom.js";
import { copy, markdownOf, save } from "./exporting.js";
import { forgetAll, kept } from "./keeping.js";
import { placeMarks, sizes } from "./marks.js";
import { forgetIndexes, isIndex, lookForIndexes } from "./offered.js";
import { askForKey, askForLimits, hasKey, takeKey } from "./server.js";
import { fillSettings, storeSettings } from "./settings.js";
import { openShelf, startShelf } from "./shelf.js";
import { openThreads, startThreads } from "./threads.js";
import { choose } from "./view.js";
import { showFile } from "./viewer.js";

const BIG_PASTE = 200_000;  // characters; a text field would lay out all of them
const EXAMPLE = { name: "How things are found", question: "How do desert ants know how far they have gone?" };

/** Return a name for a pasted text: its first line, shortened at the end of a word. */
function nameOf(text) {
  const line = text.trim().split("\n", 1)[0].replace(/^#+\s*/, "");
  return line.length > 60 ? `${line.match(/^.{1,59}(?=\s)|^.{1,59}/u)[0]}…` : line || "Text";
}

async function takeText(text) {
  if (!text.trim()) return;
  complain(null);
  try {
    await addDocument({ name: nameOf(text), parts: [{ place: {}, text }] });
  } catch (error) {
    complain(error);
  }
}

// ── Keys, pastes and drops ────────────────────

function stepThroughHits(event) {
  const hits = asking.current?.hits ?? [];
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const place = hits.findIndex((hit) => hit.button === document.activeElement);
  if (!by || place < 0) return;
  event.preventDefault();
  const next = hits[Math.min(Math.max(place + by, 0), hits.length - 1)];
  if (next.button.closest("li").hidden) asking.listAll(true);
  next.button.focus();
  asking.goTo(next, { quietly: true });
}

function onKey(event) {
  const isWriting = event.target.closest("input, textarea, select, dialog");
  const isPlain = !isWriting && !event.ctrlKey && !event.metaKey && !event.altKey;
  if (event.key === "Escape" && !event.target.closest("dialog")) {
    at("peek").hidden = true;
    asking.stopAll();
  } else if (event.key === "Enter" && event.target === at("question") && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    at("ask").requestSubmit();
  } else if (event.key === "/" && isPlain) {
    event.preventDefault();
    at("question").select();
  } else if ((event.key === "n" || event.key === "p") && isPlain) {
    asking.step(event.key === "n" ? 1 : -1);
  } else if (event.key === "ArrowDown" && event.target === at("question") && asking.current?.hits.length && !at("question").value.includes("\n")) {
    event.preventDefault();
    asking.current.hits[0].button.focus();
  } else if (!isWriting) stepThroughHits(event);
}

function onPaste(event) {
  const { files } = event.clipboardData;
  const text = event.clipboardData.getData("text/plain");
  const isBig = event.target === at("pasted") && text.length > BIG_PASTE;
  if (event.target.closest("input, textarea") && !isBig) return;
  event.preventDefault();
  if (isBig) at("text-dialog").close("cancelled");
  if (files.length) addFiles(files);
  else takeText(text);
}

function onDrop(event) {
  event.preventDefault();
  document.body.classList.remove("dropping");
  if (event.dataTransfer.files.length) addFiles(event.dataTransfer.files);
  else takeText(event.dataTransfer.getData("text/plain"));
}

/** Prepare a dialog whose form closes it with the value "given"; the cancel button and Escape close it without. */
function prepareDialog(name, onGiven = () => {}) {
  const dialog = at(`${name}-dialog`);
  dialog.querySelector("form").addEventListener("submit", () => { dialog.returnValue = "given"; });
  dialog.querySelector(".main").value = "given";
  at(`${name}-cancel`).addEventListener("click", () => dialog.close("cancelled"));
  dialog.addEventListener("close", () => { if (dialog.returnValue === "given") onGiven(); });
  return () => { dialog.returnValue = ""; dialog.showModal(); };
}

// ── State ────────────────────

/** Return the question and the scope in the address. */
function inAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  return { question: given.get("q") ?? "", scope: given.get("in") ?? "all" };
}

/** Restore the stored documents and turns; add the example on a first visit. */
async function begin() {
  askForLimits();
  const before = await kept();
  const { question: asked, scope } = inAddress();
  if (hasKey()) await lookForIndexes();
  const isExample = before.documents.every(({ id }) => id === EXAMPLE_ID);
  at("question").value = asked || before.turns.at(-1)?.question || (isExample ? EXAMPLE.question : "");
  if (before.documents.length) {
    for (const one of before.documents) await addDocument(one, { isKept: true, quietly: true }).catch(complain);
    asking.restore(before.turns);
  } else {
    await addDocument({ id: EXAMPLE_ID, name: EXAMPLE.name, parts: [{ place: {}, text: at("example").textContent }] }).catch(complain);
  }
  if (asked && isIndex(scope) && !hasKey()) {
    await askForKey().catch(() => {});  // a cancelled dialog: the index stays unknown
    await lookForIndexes();
    listScopes();
  }
  const last = asking.turns.findLast((turn) => !asked || (turn.question === asked && turn.scope === scope));
  const isThere = last || chooseScope(scope);
  if (last) asking.revisit(last);
  else if (asked && isThere && (isIndex(scope) || !isExample)) asking.ask(asked);
  listeners.changed = (removed) => {
    if (removed?.id === EXAMPLE_ID) {
      asking.forgetExample(removed);
      if (at("question").value === EXAMPLE.question) at("question").value = "";
    } else if (removed) asking.forgetDocument(removed);
    placeMarks();
  };
}

async function forgetEverything() {
  asking.forgetTurns();
  forgetIndexes();
  for (const one of [...documents]) removeDocument(one);
  await forgetAll();
  at("question").value = "";
  history.replaceState(null, "", location.pathname + location.search);
}

function start() {
  takeKey();
  const showKeptDialog = prepareDialog("forget", forgetEverything);
  const showTextDialog = prepareDialog("text", () => takeText(at("pasted").value));
  prepareDialog("key");
  const showSettings = prepareDialog("settings", () => { storeSettings(); asking.reanswer(); });
  startShelf();
  startThreads();
  const on = (id, act, kind = "click") => at(id).addEventListener(kind, act);
  on("ask", (event) => { event.preventDefault(); asking.ask(at("question").value.trim()); }, "submit");
  on("stop", asking.stopAll);
  on("all", openShelf);
  on("again", asking.askAgain);
  on("retry", () => asking.reanswer({ again: true }));
  on("anyway", () => asking.reanswer({ mode: "anyway" }));
  on("summarize", () => asking.reanswer({ mode: "summary" }));
  on("samples", () => asking.reanswer(), "change");
  on("model-choice", () => asking.reanswer(), "change");
  on("copy", () => { if (isDrawn(asking.current)) copy(markdownOf(asking.current), at("copy")); });
  on("save", () => save(asking.inThread()));
  on("forget", showKeptDialog);
  on("settings", () => { fillSettings(); showSettings(); });
  on("threads", () => openThreads(asking.listThreads(), { open: asking.openThread, rename: asking.renameThread, remove: asking.removeThread }));
  on("thread-new", () => { at("threads-dialog").close(); at("question").value = ""; asking.beginThread(); at("question").focus(); });
  on("more", () => asking.listAll(true));
  on("next", () => asking.step(1));
  on("previous", () => asking.step(-1));
  on("viewer-close", () => showFile(null));
  on("open", () => at("files").click());
  on("files", async () => { await addFiles(at("files").files); at("files").value = ""; }, "change");
  on("add", () => { at("pasted").value = ""; showTextDialog(); });
  for (const one of all("[data-presses]")) one.addEventListener("click", () => at(one.dataset.presses).click());
  for (const one of all(".views button")) one.addEventListener("click", () => choose(one.dataset.view));
  addEventListener("key", () => lookForIndexes().then(listScopes));
  addEventListener("keydown", onKey);
  addEventListener("paste", onPaste);
  addEventListener("popstate", (event) => asking.goBack(event.state ?? {}));
  addEventListener("hashchange", () => {
    takeKey();
    const { question, scope } = inAddress();
    if (!question) return;
    at("question").value = question;
    if (chooseScope(scope) && !history.state) asking.ask(question);  // an entry of the history has a state
  });
  addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dropping"); });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
  addEventListener("drop", onDrop);
  listeners.laidOut = (sheet) => sizes.observe(sheet);
  listeners.showFile = showFile;
  sizes.observe(at("text"));
  begin();
}

start();
