// One answer: a quote first, its text while it streams, then with its citations; thinking, refusal and figures.

import { nameOf, showCard } from "./card.js";
import { appendText, button, element } from "./dom.js";
import { MarkdownText, shownQuote } from "./markdown.js";
import { Runs, describeSpeed } from "./speed.js";

const NO_ANSWER = "There is no answer, because the text ended while the model was thinking.";
const CUT_OFF = "The answer was cut off at its maximum length.";
// The server's refusal, with quotation marks and numbers around it. A title is shown in its place.
const REFUSAL = /^[\s\d[\]【】"'“”„‟«»‘’*_>]*The passages do not say[\s\d[\]【】"'“”„‟«»‘’*_.]*/i;
const CLOSEST = 3;
const OUTDATED = { changed: "changed", deleted: "was deleted" };

export const newRecord = () => ({ text: "", thinking: "", segments: [], citations: [], passages: [] });

// A citation, with the fields beside `url_citation`.
const citation = ({ url_citation: cited, ...fields }) => ({ ...fields, ...cited });

// Adds a segment to the saved segments. Text without a source is joined, so that conversations take little space.
function keepSegment(segments, { text, display, drafted, passage, start, end }) {
  const last = segments.at(-1);
  if (last && !last.passage && !passage && last.drafted === drafted && !last.display && !display) last.text += text;
  else segments.push({ text, display, drafted, passage, start, end });
}

const keptPassage = ({ id, source, title, location, outdated }) => ({ id, source, title, location, outdated });

// One line that names the sources that have changed or are gone since they were indexed; empty if there are none.
function outdatedNote({ refused, citations, passages }) {
  const shown = refused ? passages.slice(0, CLOSEST) : citations.map(({ passage }) => passages[passage - 1]);
  const names = shown.filter((passage) => passage?.outdated).map(({ source, outdated }) => `${source} ${OUTDATED[outdated]}`);
  return names.length ? `${[...new Set(names)].join(", ")} since the index was made.` : "";
}

export class Answer {
  // `name` is the model, and `open(passage, citation)` shows a passage in its document.
  constructor(parent, record, open, name) {
    this.record = record;
    this.open = open;
    this.root = element("div", "answer");
    this.root.setAttribute("aria-label", `Answer of ${name}`);
    this.root.setAttribute("role", "group");
    this.textElement = element("div", "answer-text");
    this.text = new MarkdownText(this.textElement, (number, cited, chip) => this.showSource(number, cited, chip));
    this.runsElement = element("div", "answer-runs");
    this.runs = new Runs(this.runsElement, (number, cited) => this.openSource(number, cited));
    this.notes = element("div", "notes");
    this.footer = element("div", "actions");
    this.root.append(element("p", "model-name", name), this.textElement, this.runsElement, this.notes, this.footer);
    parent.append(this.root);
  }

  push(event) {
    const { record } = this;
    if (event.passages) record.passages = event.passages.map(keptPassage);
    if (event.quote) {
      record.quote = citation(event.quote);
      this.showQuote();
    }
    const choice = event.choices?.[0] ?? {};
    const { reasoning_content: thinking, content, annotations } = choice.delta ?? {};
    if (thinking) {
      record.thinking += thinking;
      this.appendThinking(thinking);
    }
    if (content) record.text += content;
    const segments = event.segments?.length ? event.segments : content ? [{ text: content }] : [];
    const isQuoted = segments.some((segment) => segment.quoted && segment.passage);
    for (const segment of segments) {
      if (isQuoted) record.quoted = (record.quoted ?? 0) + Array.from(segment.text).length;
      if (segment.step !== undefined && segment.step !== null) record.isDecoded = true;
      keepSegment(record.segments, segment);
      this.runs.push(segment, record.passages);
    }
    if (annotations) record.citations = annotations.map(citation);
    if (choice.refused) record.refused = true;
    if (choice.ended_in_thinking) record.endedInThinking = true;
    if (choice.finish_reason === "length") record.isCutOff = true;
    if (event.metrics) Object.assign(record, { usage: event.usage, metrics: event.metrics });
    if (event.metrics?.steps) record.isDecoded = true;
    this.root.classList.toggle("decoded", Boolean(record.isDecoded));
    if (content) this.showSoon();
  }

  // Shows the growing text, at most once for each frame.
  showSoon() {
    this.root.classList.add("has-text");
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.text.show(this.record.text, this.record, true);
    });
  }

  // Shows a quote above the answer, large until the answer begins.
  showQuote() {
    const { quote, passages } = this.record, passage = passages[quote.passage - 1];
    if (!passage) return;
    const figure = element("figure", "first-quote");
    const opener = button(nameOf(passage, quote), () => this.openSource(quote.passage, quote), "link");
    const caption = element("figcaption", "caption", "Quoted from ");
    caption.append(opener);
    figure.append(caption, element("blockquote", "", shownQuote(quote)));
    this.root.insertBefore(figure, this.textElement);
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
    if (record.quote) this.showQuote();
    if (record.thinking) this.appendThinking(record.thinking);
    for (const segment of record.segments) this.runs.push(segment, record.passages);
    this.finish();
  }

  // Shows what is known when the answer is complete: citations, sources and figures.
  finish() {
    const { record, notes, root } = this;
    cancelAnimationFrame(this.frame);
    notes.replaceChildren();
    if (record.refused) this.text.show(record.text.replace(REFUSAL, ""), { ...record, citations: [] });
    else this.text.show(record.text, record);
    root.classList.toggle("has-text", Boolean(record.text));
    root.classList.toggle("refusal", Boolean(record.refused));
    root.classList.toggle("decoded", Boolean(record.isDecoded));
    if (record.refused) {
      this.textElement.prepend(element("strong", "refusal-title", "No answer in these documents"));
      this.showSources("Closest passages", this.passageNumbers().slice(0, CLOSEST));
    } else if (record.citations.length) this.showSources("Sources", record.citations);
    else if (record.passages.length && record.text) this.showSources("Read for this answer", this.passageNumbers());
    const outdated = outdatedNote(record);
    if (outdated) notes.append(element("p", "notice", outdated));
    if (record.endedInThinking) notes.append(element("p", "notice", NO_ANSWER));
    else if (record.isCutOff) notes.append(element("p", "notice", CUT_OFF));
    this.footer.replaceChildren(...(record.metrics ? [element("p", "caption", this.caption())] : []));
    if (record.metrics?.steps) notes.append(element("p", "caption speed-only stats", describeSpeed(record)));
  }

  caption() {
    const { record } = this, seconds = `${record.metrics.seconds.toFixed(1)} s`;
    if (record.refused) return `Searched the documents in ${seconds}`;
    return record.metrics.steps || record.usage.completion_tokens ? `Answered in ${seconds}` : `Quoted from the documents in ${seconds}`;
  }

  passageNumbers() {
    return this.record.passages.map((_, index) => ({ passage: index + 1 }));
  }

  // Names the places of the citations, each once and without the quotes.
  showSources(title, citations) {
    const list = element("ul", "sources");
    list.setAttribute("aria-label", title);
    const named = Map.groupBy(citations, (cited) => nameOf(this.record.passages[cited.passage - 1], cited));
    for (const [name, [cited, ...others]] of named) {
      const numbers = new Set([cited, ...others].map(({ passage }) => passage)), item = element("li");
      const opener = button("", () => this.openSource(cited.passage, cited), "source-name");
      opener.append(element("span", "badge", [...numbers].join(", ")), element("span", "", name));
      item.append(opener);
      list.append(item);
    }
    this.notes.append(element("p", "sources-title", title), list);
  }

  showSource(number, cited, chip) {
    showCard(chip, number, this.record.passages[number - 1], cited, () => this.openSource(number, cited));
  }

  openSource(number, cited) {
    this.open(this.record.passages[number - 1], cited);
  }
}
