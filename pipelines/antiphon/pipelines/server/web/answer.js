// One answer: its text while it streams, then with quotes and sources; thinking, refusal and figures.

import { appendText, button, element } from "./dom.js";
import { Runs, describeSpeed } from "./speed.js";
import { showText, shownQuote } from "./text.js";

const NO_ANSWER = "There is no answer, because the text ended while the model was thinking.";
const CUT_OFF = "The answer was cut off at its maximum length.";
const REFUSAL = "The passages do not say."; // the server's words, in place of which a title is shown
const CLOSEST = 3;

export const newRecord = () => ({ text: "", thinking: "", segments: [], citations: [], passages: [] });

// Adds a segment to those that are saved; text without a source is joined, so that conversations take little room.
function keepSegment(segments, { text, display, drafted, passage, start, end }) {
  const last = segments.at(-1);
  if (last && !last.passage && !passage && last.drafted === drafted && !last.display && !display) last.text += text;
  else segments.push({ text, display, drafted, passage, start, end });
}

export class Answer {
  // `open(passage, citation)` shows a passage in its document.
  constructor(parent, record, open, caption = "") {
    this.record = record;
    this.open = open;
    this.root = element("div", "answer");
    this.root.setAttribute("aria-label", caption || "Answer");
    this.root.setAttribute("role", "group");
    if (caption) this.root.append(element("h3", "", caption));
    this.textElement = element("div", "answer-text");
    this.runsElement = element("div", "answer-runs");
    this.runs = new Runs(this.runsElement, (number, cited) => this.openSource(number, cited));
    this.notes = element("div", "notes");
    this.root.append(this.textElement, this.runsElement, this.notes);
    parent.append(this.root);
  }

  push(event) {
    const { record } = this;
    if (event.passages) record.passages = event.passages.map(({ id, source, title, location }) => ({ id, source, title, location }));
    const choice = event.choices?.[0] ?? {};
    const { reasoning_content: thinking, content, annotations } = choice.delta ?? {};
    if (thinking) {
      record.thinking += thinking;
      this.appendThinking(thinking);
    }
    if (content) {
      record.text += content;
      appendText(this.textElement, content);
    }
    for (const segment of event.segments ?? (content ? [{ text: content }] : [])) {
      keepSegment(record.segments, segment);
      this.runs.push(segment, record.passages);
    }
    if (annotations) record.citations = annotations.map((each) => each.url_citation);
    if (choice.refused) record.refused = true;
    if (choice.ended_in_thinking) record.endedInThinking = true;
    if (choice.finish_reason === "length") record.isCutOff = true;
    if (event.metrics) Object.assign(record, { usage: event.usage, metrics: event.metrics });
  }

  // Shows the thinking folded above the answer.
  appendThinking(text) {
    if (!this.thinking) {
      const folded = element("details", "thinking");
      this.thinking = element("p");
      folded.append(element("summary", "", "Thinking"), this.thinking);
      this.root.insertBefore(folded, this.textElement);
    }
    appendText(this.thinking, text);
  }

  // Shows an answer that was kept in the history.
  restore() {
    const { record } = this;
    if (record.thinking) this.appendThinking(record.thinking);
    for (const segment of record.segments) this.runs.push(segment, record.passages);
    this.finish();
  }

  // Shows what is known when the answer is complete: citations, sources and figures.
  finish() {
    const { record, notes } = this;
    notes.replaceChildren();
    const text = record.refused ? record.text.replace(REFUSAL, "").trim() : record.text;
    showText(this.textElement, text, record.citations, record.passages, (number, cited) => this.openSource(number, cited));
    this.root.classList.toggle("refusal", Boolean(record.refused));
    if (record.refused) {
      this.textElement.prepend(element("strong", "refusal-title", "No answer in these documents"));
      this.showSources("Closest passages", this.passageNumbers().slice(0, CLOSEST));
    } else if (record.citations.length) this.showSources("Sources", record.citations);
    else if (record.passages.length && record.text) {
      this.showSources("Read for this answer", this.passageNumbers());
    }
    if (record.endedInThinking) notes.append(element("p", "notice", NO_ANSWER));
    else if (record.isCutOff) notes.append(element("p", "notice", CUT_OFF));
    if (record.metrics) {
      notes.append(element("p", "caption", this.caption()), element("p", "caption speed-only stats", describeSpeed(record)));
    }
  }

  caption() {
    const { record } = this, seconds = `${record.metrics.seconds.toFixed(1)} s`;
    if (record.refused) return `Searched the documents in ${seconds}`;
    return record.metrics.steps ? `Answered in ${seconds}` : `Quoted from the documents in ${seconds}`;
  }

  passageNumbers() {
    return this.record.passages.map((_, index) => ({ passage: index + 1 }));
  }

  // Lists sources, with their quotes if they are quoted.
  showSources(title, citations) {
    const list = element("ol", "sources");
    const items = new Map();
    for (const cited of citations) {
      const { source, location, title: heading } = this.record.passages[cited.passage - 1];
      const place = cited.location ?? (location && !location.startsWith("lines") ? location : heading.split(" > ").at(-1) || location);
      const name = `${cited.passage} ${place}`, open = () => this.openSource(cited.passage, cited);
      if (!items.has(name)) items.set(name, sourceItem(cited.passage, place ? `${source}, ${place}` : source, open));
      if (cited.cited_text) items.get(name).append(button(`“${shownQuote(cited)}”`, open, "source-quote"));
    }
    list.append(...items.values());
    this.notes.append(element("h3", "", title), list);
  }

  openSource(number, cited) {
    this.open(this.record.passages[number - 1], cited);
  }
}

function sourceItem(number, name, open) {
  const item = element("li", "source");
  const head = button("", open, "source-name");
  head.append(element("span", "badge", String(number)), element("span", "", name));
  item.append(head);
  return item;
}
