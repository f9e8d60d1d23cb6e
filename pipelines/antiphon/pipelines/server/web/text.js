// The text of an answer as elements: quoted parts with the number of their source, bold text and code.

import { button, element } from "./dom.js";

const STYLED = /\*\*([^*\n]+)\*\*|`([^`\n]+)`/g;
const NUMBER = /\[(\d{1,4})\]/g;
const CLOSING = /^[.,;:!?)"'”’»]+/; // marks that stand before the number of a source
const oneLine = (text) => text.replace(/\s+/g, " ").trim();

export const shownQuote = (cited) => oneLine(cited.display_text ?? cited.cited_text);

// Shows a text with its citations. `open(number, citation)` is called if the number of a source is activated; the
// citation is undefined if the number belongs to none.
export function showText(parent, text, citations, passages, open) {
  const characters = Array.from(text);
  const nodes = [];
  let done = 0, last;
  const plain = (until, next) => {
    let between = characters.slice(done, until).join("");
    if (next && between.endsWith(`[${next.passage}] `)) between = between.slice(0, -`[${next.passage}] `.length);
    nodes.push(...withNumbers(between, passages, open, last));
  };
  for (const cited of [...citations].sort((one, other) => one.start_index - other.start_index)) {
    plain(cited.start_index, cited);
    const quote = element("span", "quote");
    const own = characters.slice(cited.start_index, cited.end_index).join("");
    quote.append(...styled(oneLine(own) === shownQuote(cited) ? own : shownQuote(cited)));
    nodes.push(quote);
    last = cited;
    const after = characters.slice(cited.end_index, cited.end_index + 9).join("");
    const [closing] = after.match(CLOSING) ?? [""];
    done = cited.end_index + closing.length;
    nodes.push(closing);
    if (!after.slice(closing.length).replace(/^ +/, "").startsWith(`[${cited.passage}]`)) nodes.push(marker(cited.passage, cited, open));
  }
  plain(characters.length);
  parent.replaceChildren(...nodes);
}

function marker(number, cited, open) {
  const made = button(String(number), () => open(number, cited), "marker");
  made.setAttribute("aria-label", `Source ${number}`);
  return made;
}

// Turns the numbers of sources in a text, such as [2], into buttons.
function withNumbers(text, passages, open, last) {
  const nodes = [];
  let done = 0;
  for (const match of text.matchAll(NUMBER)) {
    const number = Number(match[1]);
    if (number < 1 || number > passages.length) continue;
    nodes.push(...styled(text.slice(done, match.index)), marker(number, last?.passage === number ? last : undefined, open));
    done = match.index + match[0].length;
  }
  return [...nodes, ...styled(text.slice(done))];
}

function styled(text) {
  const nodes = [];
  let done = 0;
  for (const match of text.matchAll(STYLED)) {
    nodes.push(text.slice(done, match.index), match[1] ? element("strong", "", match[1]) : element("code", "", match[2]));
    done = match.index + match[0].length;
  }
  return [...nodes, text.slice(done)].filter((node) => node !== "");
}
