// The text of an answer as elements: Markdown, with quotes underlined and the numbers of their sources as buttons.
//
// Neither models nor documents are trusted: HTML in a text is shown as text, and what the parser returns is sanitized.
// Before a text is parsed, each quote and number is replaced by a private use character that marks its place.

import remend from "./vendor/remend.js";
import { Marked } from "./vendor/marked.esm.js";
import "./vendor/purify.min.js";
import { button, copy, element } from "./dom.js";

const parser = new Marked({
  gfm: true,
  breaks: true,
  tokenizer: { html: () => undefined, tag: () => undefined },
  renderer: {
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    heading({ tokens, depth }) {
      const name = `h${Math.min(depth + 2, 6)}`; // below the question, which is a heading of the second level
      return `<${name}>${this.parser.parseInline(tokens)}</${name}>`;
    },
    image(token) {
      return this.link(token); // the page loads nothing from elsewhere
    },
  },
});
const ALLOWED = {
  ALLOWED_TAGS: [
    "a", "blockquote", "br", "code", "del", "em", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "strong",
    "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["align", "class", "href", "start"],
  ADD_URI_SAFE_ATTR: ["align", "start"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  RETURN_DOM_FRAGMENT: true,
};
const FIRST = 0xf0000; // the first of the private use characters
const RESERVED = /[\u{f0000}-\u{ffffd}]/gu;
const PLACE = /(\u202f?[\u{f0000}-\u{ffffd}])/u;
const IN_ADDRESS = /%F3%B[0-9A-F]%[0-9A-F]{2}%[0-9A-F]{2}/gi; // the same characters in the address of a link
const MARKER = /[ \t]*[[【][ \t]*([1-9]\d{0,2}(?:[ \t]*[,;，、][ \t]*[1-9]\d{0,2})*)[ \t]*(?:†[^\]】\n]{0,40})?[\]】](?!\()/g;
const UNFINISHED = /[ \t]*[[【][\d,; †L-]{0,40}$|[*_~`!]+$|(?<=^|\n)[ \t]*(?:[-=+#>]+|\d+[.)]?)[ \t]*$/; // a number, markup
const CLOSING = /^[.,;:!?)"'”’»*_`~]*/; // characters that stand before the number of a source
const LINE_START = /^(?:[ \t>]*(?:[-*+]|\d{1,9}[.)]|#{1,6})[ \t]+)*/;
const WORD = /[^\s!-/:-@[-`{-~]+/gu; // neither a space nor what may be markup
const oneLine = (text) => text.replace(/\s+/g, " ").trim();
const isRow = (line) => line?.trimStart().startsWith("|");

export const shownQuote = (cited) => oneLine(cited.display_text ?? cited.cited_text);

// Replaces quotes and numbers of sources; returns the Markdown and the places.
function withPlaces(text, { citations, passages, quoted = 0 }) {
  const units = [0]; // the server counts code points, and strings of JavaScript UTF-16 units
  for (const character of text) units.push(units.at(-1) + character.length);
  const at = (point) => units[Math.min(point, units.length - 1)];
  const quotedEnd = at(quoted), places = [], edits = [];
  const stand = (place) => String.fromCodePoint(FIRST + places.push(place) - 1);
  const number = (place) => `\u202f${stand(place)}`; // a space, so that the Markdown around is not part of a word
  const literal = (own, isQuote) => own.replace(/[^\n]+/g, (line) => stand({ text: line, isQuote }));
  const spans = citations.map((cited) => ({ cited, start: at(cited.start_index), end: at(cited.end_index) }))
    .sort((one, other) => one.start - other.start);
  const named = spans.filter(({ cited }) => cited.kind === "marker"), verbatim = spans.filter((span) => !named.includes(span));
  const markers = findMarkers(text, passages.length, verbatim, named, quotedEnd);

  for (const [index, { cited, start, end }] of verbatim.entries()) {
    const own = text.slice(start, end);
    if (end <= quotedEnd) { // the server quotes, so this is text of a document, which is not Markdown
      edits.push({ start, end, text: literal(oneLine(own) === shownQuote(cited) ? own : shownQuote(cited), true) });
    } else for (const { 0: line, index: offset } of own.matchAll(/[^\n]+/g)) {
      const isFirst = !offset && start > 0 && text[start - 1] !== "\n";
      const skipped = isFirst ? 0 : line.match(LINE_START)[0].length;
      const words = [...line.slice(skipped).matchAll(WORD)].map(({ 0: character, index }) => [index, index + character.length]);
      for (const edge of words.length ? [words[0][0], words.at(-1)[1]] : []) {
        const place = start + offset + skipped + edge;
        edits.push({ start: place, end: place, text: stand({ isEdge: true }) });
      }
    }
    const next = Math.min(end + text.slice(end).match(CLOSING)[0].length, verbatim[index + 1]?.start ?? Infinity);
    const isFollowed = markers.some((marker) => marker.start === next && marker.numbers.includes(cited.passage));
    if (!isFollowed) edits.push({ start: next, end: next, text: number({ passage: cited.passage, cited }) });
  }
  for (const { start, end, numbers, isPrefix } of markers) {
    const whole = text.slice(start, end);
    const shown = numbers.map((passage, index) => number({ passage, literal: index ? "" : whole, cited: cause(passage, start, end) }));
    edits.push({ start, end, text: isPrefix ? "" : shown.join("") });
  }

  function cause(passage, start, end) {
    const marked = named.find((each) => each.cited.passage === passage && each.start < end && start < each.end)?.cited;
    const quote = verbatim.findLast((each) => each.end <= start && each.cited.passage === passage
      && !text.slice(each.end, start).includes("\n"));
    return marked?.unsupported ? marked : quote?.cited ?? marked;
  }

  let done = 0, markdown = "";
  const keep = (until) => {
    const split = Math.max(done, Math.min(until, quotedEnd));
    markdown += literal(text.slice(done, split)) + text.slice(split, until);
    done = Math.max(done, until);
  };
  for (const edit of edits.sort((one, other) => one.start - other.start)) {
    keep(edit.start);
    markdown += edit.text;
    done = Math.max(done, edit.end);
  }
  keep(text.length);
  return { markdown, places };
}

// Finds numbers of sources such as [2] or [1, 3]. A number right before a quote of its passage is not shown.
function findMarkers(text, count, verbatim, named, quotedEnd) {
  const found = [];
  for (const match of text.matchAll(MARKER)) {
    const start = match.index, end = start + match[0].length, numbers = match[1].split(/\D+/).map(Number);
    if (numbers.some((each) => each > count)) continue;
    if (named.length && !named.some((each) => each.start < end && start < each.end)) continue; // the text has it
    if (verbatim.some((quote) => quote.start < end && start < quote.end)) continue; // the document has it
    const isPrefix = (!start || text[start - 1] === "\n") && verbatim.some(({ cited, start: quote }) => {
      const between = text.slice(end, quote);
      return cited.passage === numbers[0] && quote >= end && (between === " " || (quote < quotedEnd && !between.includes("\n")));
    });
    found.push({ start, end: isPrefix && text[end] === " " ? end + 1 : end, numbers, isPrefix });
  }
  return found;
}

// Completes or removes unfinished markup at the end of a growing text, so that shown text does not look different later.
function completed(text) {
  const lines = text.replace(UNFINISHED, "").split("\n");
  if (isRow(lines.at(-1)) || !lines.at(-1)) lines.pop();
  if (isRow(lines.at(-1)) && !isRow(lines.at(-2))) lines.pop(); // the head of a table, without the line below it
  return remend(lines.join("\n"), { katex: false, linkMode: "text-only" });
}

export class MarkdownText {
  // `open(passage, citation, button)` is called if the number of a source is activated.
  constructor(root, open) {
    this.root = root;
    this.open = open;
    this.blocks = [];
  }

  // Shows the text; while it grows, blocks that stay the same keep their elements.
  show(text, record, isGrowing = false) {
    const own = text.replace(RESERVED, "\ufffd");
    const { markdown, places } = withPlaces(isGrowing ? completed(own) : own, record);
    const before = isGrowing ? this.blocks : [];
    this.blocks = parser.lexer(markdown).map((token) => parser.parser([token])).filter(Boolean)
      .map((html, index) => (before[index]?.html === html ? before[index] : { html, root: this.block(html, places) }));
    this.blocks.forEach(({ root }, index) => {
      const shown = this.root.children[index];
      if (!shown) this.root.append(root);
      else if (shown !== root) shown.replaceWith(root);
    });
    while (this.root.children.length > this.blocks.length) this.root.lastChild.remove();
  }

  block(html, places) {
    const root = element("div", "block");
    root.append(DOMPurify.sanitize(html, ALLOWED));
    for (const link of root.querySelectorAll("a[href]")) {
      link.setAttribute("href", link.getAttribute("href").replace(IN_ADDRESS, ""));
      Object.assign(link, { target: "_blank", rel: "noopener noreferrer nofollow" });
    }
    this.fill(root, places);
    for (const table of root.querySelectorAll("table")) wrap(table, scrollable(element("div"), "Table"));
    for (const code of root.querySelectorAll("pre > code")) {
      const head = element("div", "code-head");
      const name = code.className.replace("language-", "").replace(RESERVED, "");
      head.append(element("span", "", name), button("Copy", () => copy(code.textContent), "small"));
      const frame = element("div", "code");
      wrap(scrollable(code.parentElement, "Code"), frame);
      frame.prepend(head);
    }
    return root;
  }

  // Puts quotes and buttons in place of the private use characters. Buttons stand after code and links, not in them.
  fill(root, places) {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT), texts = [];
    while (walker.nextNode()) texts.push(walker.currentNode);
    let isQuote = false;
    for (const node of texts) {
      const host = node.parentElement.closest("pre") ?? node.parentElement.closest("code, a");
      const nodes = [], after = [];
      for (const part of node.data.split(PLACE).filter(Boolean)) {
        const place = places[part.codePointAt(part.startsWith("\u202f") ? 1 : 0) - FIRST];
        if (!place) nodes.push(isQuote && part.trim() ? element("span", "quote", part) : part);
        else if (place.isEdge) isQuote = !isQuote;
        else if (place.text) nodes.push(place.isQuote ? element("span", "quote", place.text) : place.text);
        else if (place.literal !== undefined && host && host.tagName !== "A") nodes.push(place.literal);
        else if (host) after.push(this.number(place));
        else nodes.push(this.joined(nodes, this.number(place)));
      }
      node.replaceWith(...nodes);
      host?.after(...after);
    }
  }

  // Keeps a number on the line of the character before it, such as a full stop.
  joined(nodes, number) {
    if (typeof nodes.at(-1) !== "string" || !/[!-~]$/.test(nodes.at(-1))) return number;
    const text = nodes.pop(), together = element("span", "together", text.slice(-1));
    nodes.push(text.slice(0, -1));
    together.append(number);
    return together;
  }

  number({ passage, cited }) {
    const made = button(String(passage), () => this.open(passage, cited, made), "marker");
    made.setAttribute("aria-label", `Source ${passage}${cited?.unsupported ? ", which does not support this sentence" : ""}`);
    made.setAttribute("aria-haspopup", "dialog");
    made.classList.toggle("unsupported", Boolean(cited?.unsupported));
    return made;
  }
}

function wrap(inner, outer) {
  inner.replaceWith(outer);
  outer.append(inner);
}

// Lets an element scroll sideways, also with the keyboard.
function scrollable(made, label) {
  made.className = "scrollable";
  made.tabIndex = 0;
  made.setAttribute("role", "region");
  made.setAttribute("aria-label", label);
  return made;
}
