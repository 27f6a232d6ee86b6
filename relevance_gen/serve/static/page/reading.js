/** Displays documents for reading: Markdown, and prose with wrapped lines. Marks refer to offsets in the text, so the text
    stays complete: Markdown signs and line ends are elements that the style sheet hides. */

import { make } from "./dom.js";

const CODE = /\.(?:bat|c|cc|cfg|conf|cpp|cs|css|go|h|hpp|ini|ipynb|java|js|json|jsonl|kt|log|lua|php|pl|ps1|py|r|rb|rs|scala|sh|sql|swift|tex|toml|ts|tsx|xml|ya?ml)$/i;
const MARKDOWN = /\.(?:md|markdown|mdx|qmd|rmd)$/i;
const EXTRACTED = /\.(?:csv|tsv|x?html?|eml|epub|docx|od[tps]|pptx|xlsx)$/i;  // the server writes their headings and tables in Markdown
const SIGNS = /^(?:#{1,6} \S|```|\|.*\|$)|\*\*\S|`\S[^`\n]*`|\]\(\S+\)/m;

export const WRAPPED = /((?<=[^\n]{45}\p{Ll})\n(?=\p{L})|(?<=[^\n]{46})\n(?=\p{Ll}))/u;  // a long line that continues in the next line
const FENCE = /^ {0,3}(?:```|~~~)/;
const FRONT = /^---\n(?:[\w-]+:.*\n|-?[ \t].*\n)+---(?:\n|$)/;  // front matter
const RULE = /^ {0,3}(?:(?:[-*_][ \t]*){3,}|=+[ \t]*)$/;
const DELIMITERS = /^[ \t]*\|[\s:|-]*-[\s:|-]*$/;  // the row below the header of a table
const BLOCK = /^(?:(?<head> {0,3}#{1,6}[ \t]+)|(?<item>[ \t]*(?:[-*+:]|\d{1,3}[.)])[ \t]+)|(?<quote> {0,3}>[ \t]?)|(?<row>[ \t]*\|))/;
const SEPARATOR = /([ \t]*(?<!\\)\|[ \t]*\n?)/;  // between the cells of a table
const NAMED = /^([^\s:|][^:|]{0,49}): /;  // a cell that begins with the name of its column
const MOST_NAME = 50;  // characters of the names that the server repeats
const INLINE = new RegExp([  // strings, because the numbers of groups count in the joined pattern
  String.raw`(\x60+)([^\x60]|[^\x60].*?[^\x60])\1(?!\x60)`,
  String.raw`(\*\*|(?<!\w)__)(?=\S)(.*?\S)\3`,
  String.raw`(?<![\w*])([*_])(?=[^\s*_])([^*_]*?[^\s*_])\5(?!\w)`,
  String.raw`(!?\[)((?:[^[\]]|!\[[^[\]]*\]\([^()\s]*\))*)(\]\([^()\s]*(?:\([^()]*\)[^()\s]*)?(?:\s+"[^"]*")?\))`,
  String.raw`(<!--.*?-->)|(\\)([!-/:-@[-\x60{-~])`,
].join("|"), "gs");
const MOST_DEEP = 3;
const MOST_CHARS = 4000;  // longer texts are displayed unchanged, because patterns can take quadratic time

/** Return the kind of a document: "code", "text", "headings" (text with headings and tables of Markdown) or "markdown". */
export function kindOf(name, text) {
  if (CODE.test(name)) return "code";
  if (EXTRACTED.test(name)) return "headings";
  return MARKDOWN.test(name) || (!/\.\w{1,8}$/.test(name) && SIGNS.test(text.slice(0, 10 * MOST_CHARS))) ? "markdown" : "text";
}

const hidden = (text, className = "sign") => make("span", { className }, text);

/** Return nodes whose text is `text`, with Markdown signs hidden. `isFenced`: the text is part of a block of code. */
export function reading(text, kind, { isFenced = false } = {}) {
  if (kind === "code" || (isFenced && kind !== "markdown") || text.length > MOST_CHARS) return [text];
  if (kind === "text") return text.split(WRAPPED).map((part, place) => (place % 2 ? hidden(part, "soft") : part));
  const nodes = [];
  let isCode = isFenced && !FENCE.test(text);
  let open = null;  // the block that receives lines
  const close = () => {
    if (open) nodes.push(...nodesOfBlock(open));
    open = null;
  };
  const front = kind === "markdown" ? text.match(FRONT)?.[0] ?? "" : "";
  if (front) nodes.push(hidden(front, "quiet"));
  for (const line of text.slice(front.length).split(/(?<=\n)/)) {
    const { groups = {}, 0: sign = "" } = line.match(BLOCK) ?? {};
    const name = Object.keys(groups).find((one) => groups[one] !== undefined && (kind === "markdown" || one === "head" || one === "row"));
    if (kind === "markdown" && FENCE.test(line)) {
      close();
      isCode = !isCode;
      nodes.push(hidden(line));
    } else if (isCode) {
      if (open) open.text += line;
      else open = { name: "listing", sign: "", text: line };
    } else if (kind !== "markdown" && !name || !line.trim()) {
      close();
      nodes.push(line);
    } else if (RULE.test(line.trimEnd())) {
      if (open?.name === "" && !open.text.trimEnd().includes("\n")) Object.assign(open, { name: "head", level: line.includes("=") ? 1 : 2 });
      const isRule = !open;
      close();
      nodes.push(hidden(line, isRule ? "rule" : "sign"));
    } else if (name === "row" && open?.name === "row" || name === "quote" && open?.name === "quote" || !name && open && open.name !== "row" && open.name !== "head") {
      open.text += line;
    } else {
      close();
      open = { name: name ?? "", sign: name === "row" ? "" : sign, text: line.slice(name === "row" || !name ? 0 : sign.length) };
    }
  }
  close();
  return nodes;
}

/** Return the nodes of a block. The end of its last line is outside if another block follows. */
function nodesOfBlock({ name, sign, text, level = sign.trim().length }) {
  const end = text.match(name === "head" ? /(?:[ \t]+#+)?[ \t]*\n?$/ : /\n?$/)[0];
  const inner = text.slice(0, text.length - end.length);
  if (!name) return [...inline(inner), ...(end ? [end] : [])];
  if (name === "row") return [make("span", { className: "table" }, ...rowsOf(text.split(/(?<=\n)/)))];
  const indent = sign.match(/^[ \t]*/)[0];
  const isNumbered = name === "item" && /\d/.test(sign);
  const className = { head: `head h${level}`, item: /[-*+]/.test(sign) ? "item bullet" : "item" }[name] ?? name;
  const made = make("span", { className }, hidden(isNumbered ? indent : sign), isNumbered ? sign.trimStart() : "", ...(name === "listing" ? [inner] : inline(inner)), hidden(end, "end"));
  if (name === "item") made.style.setProperty("--indent", indent.length);
  return [made];
}

/** Return the rows of a table. Names that the server repeats in each cell, `| city: Rome |`, are hidden; if the header row is
    in an earlier chunk, the style sheet displays them above the first row. */
function rowsOf(lines) {
  const rows = lines.map((line) => (DELIMITERS.test(line) ? [] : line.split(SEPARATOR).filter((_, place) => place % 2 === 0).slice(1)));
  const isNamed = (names, named) => named.flat().length > 0 && named.every((cells) => cells.every((cell, column) => !cell || !names[column] || cell.startsWith(`${names[column]}: `)));
  const header = rows[0].map((cell) => cell.slice(0, MOST_NAME));
  const names = rows[0].map((cell) => cell.match(NAMED)?.[1] ?? "");
  if (isNamed(header, rows.slice(1))) return lines.map((line, place) => rowOf(line, place ? header : [], place ? "" : "header"));
  if (names.some(Boolean) && isNamed(names, rows)) return lines.map((line, place) => rowOf(line, names, place ? "" : "named"));
  return lines.map((line) => rowOf(line, [], ""));
}

/** Return a row with the column names in its cells hidden; `className`: "header", "named" to display the names above, or "". */
function rowOf(line, names, className) {
  if (DELIMITERS.test(line)) return hidden(line);
  const parts = line.split(SEPARATOR);
  const made = parts.map((part, place) => {
    if (place % 2) return hidden(part, "pipe");
    if (!part && (!place || place === parts.length - 1)) return null;
    const name = names[place / 2 - 1];
    const sign = name && part.startsWith(`${name}: `) ? `${name}: ` : "";
    const cell = make("span", { className: "cell" }, sign ? hidden(sign, "label") : null, ...inline(part.slice(sign.length)));
    if (sign) cell.dataset.name = name;
    return cell;
  });
  return make("span", { className: `row ${className}` }, ...made);
}

/** Return the nodes of a text in one block: emphasis, code, links; wrapped lines are joined. */
function inline(text, depth = 0) {
  const nodes = [];
  let last = 0;
  if (depth < MOST_DEEP) {
    for (const { index, 0: all, 1: tick, 2: code, 3: stars, 4: strong, 5: star, 6: weak, 7: bracket, 8: link, 9: target, 11: slash, 12: sign } of text.matchAll(INLINE)) {
      nodes.push(...runningOn(text.slice(last, index)));
      if (code !== undefined) nodes.push(hidden(tick), make("code", {}, ...runningOn(code)), hidden(tick));
      else if (strong !== undefined) nodes.push(hidden(stars), make("strong", {}, ...inline(strong, depth + 1)), hidden(stars));
      else if (weak !== undefined) nodes.push(hidden(star), make("em", {}, ...inline(weak, depth + 1)), hidden(star));
      else if (target !== undefined) nodes.push(hidden(bracket), make("span", { className: "link", title: target.slice(2, -1) }, ...inline(link, depth + 1)), hidden(target));
      else nodes.push(...(slash ? [hidden(slash), sign] : [hidden(all)]));
      last = index + all.length;
    }
  }
  return [...nodes, ...runningOn(text.slice(last))];
}

/** Convert line ends to spaces unless two spaces precede them; hide the quotation sign of the next line. */
const runningOn = (text) => text.split(/((?<! {2})\n[ \t]*)((?:>[ \t]?)*)/).map((part, place) => (place % 3 && part ? hidden(part, place % 3 === 1 ? "soft" : "sign") : part)).filter(Boolean);
