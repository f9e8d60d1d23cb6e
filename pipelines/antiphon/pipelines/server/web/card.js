// The card of a source, which opens below its number: where a quote is from, and its words.

import { byId } from "./dom.js";
import { shownQuote } from "./markdown.js";

const GAP = 6; // pixels between the number and its card
const card = byId("source");

function placeOf({ location, title }, cited) {
  return cited?.location ?? (location && !location.startsWith("lines") ? location : title.split(" > ").at(-1) || location);
}

export function nameOf(passage, cited) {
  const place = placeOf(passage, cited);
  return place ? `${passage.source}, ${place}` : passage.source;
}

// Shows the card of a citation, or of a passage if `cited` is undefined. `openDocument` shows the passage.
export function showCard(anchor, number, passage, cited, openDocument) {
  const quote = cited?.cited_text ? shownQuote(cited) : "";
  byId("source-name").textContent = `${number} ${passage.source}`;
  byId("source-place").textContent = placeOf(passage, cited) ?? "";
  byId("source-quote").textContent = quote;
  byId("source-quote").hidden = !quote;
  byId("source-also").textContent = cited?.also_in?.length ? `Also in ${cited.also_in.join(", ")}` : "";
  byId("source-doubt").hidden = !cited?.unsupported;
  byId("source-open").onclick = () => {
    card.hidePopover(); // the focus returns to the number
    openDocument();
  };
  card.showPopover();
  const { left, bottom } = anchor.getBoundingClientRect();
  card.style.left = `${Math.max(8, Math.min(left, innerWidth - card.offsetWidth - 16)) + scrollX}px`;
  card.style.top = `${bottom + GAP + scrollY}px`;
  byId("source-open").focus({ preventScroll: true });
}
