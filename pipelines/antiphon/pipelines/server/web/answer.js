// An answer on the page: segments in the colour of their passage, citations, statistics. All text is inserted as text,
// never as markup, because documents are not trusted.

const COLOURS = 7;
const NO_ANSWER = "There is no answer, because the text ended while the model was thinking.";
const byId = (id) => document.getElementById(id);

export function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

const tint = (passage) => `p${(passage - 1) % COLOURS}`;

// Shows a passage next to the answer, with its characters start to end marked.
export function showPassage(number, passage, start, end) {
  const name = passage.title ? `${passage.source}: ${passage.title}` : passage.source;
  byId("passage-location").textContent = `[${number}] ${name}, characters ${passage.start + start} to ${passage.start + end}`;
  const characters = Array.from(passage.text); // offsets count code points, and strings of JavaScript UTF-16 units
  const slice = (from, to) => characters.slice(from, to).join("");
  const marked = element("mark", tint(number), slice(start, end));
  byId("passage-text").replaceChildren(slice(0, start), marked, slice(end));
  marked.scrollIntoView({ block: "nearest" });
}

function showOnFocus(made, number, passage, start, end) {
  const show = () => showPassage(number, passage, start, end);
  made.addEventListener("mouseenter", show);
  made.addEventListener("focus", show);
  made.addEventListener("click", show);
  made.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    show();
  });
}

export class Answer {
  constructor(parent, caption) {
    this.root = element("div", "answer");
    if (caption) this.root.append(element("p", "faint", caption));
    this.textElement = element("div", "answer-text");
    this.stats = element("p", "stats");
    this.root.append(this.textElement, this.stats);
    parent.append(this.root);
    this.passages = [];
    this.text = "";
    this.lastPassage = null;
  }

  push(event) {
    if (event.passages) this.passages = event.passages;
    const delta = event.choices?.[0]?.delta ?? {};
    if (delta.reasoning_content) this.appendThinking(delta.reasoning_content);
    if (event.segments) for (const segment of event.segments) this.appendSegment(segment);
    else if (delta.content) this.appendSegment({ text: delta.content });
    if (delta.content) this.text += delta.content;
    if (delta.annotations?.length) this.showCitations(delta.annotations);
    if (event.choices?.[0]?.ended_in_thinking) this.textElement.append(NO_ANSWER);
    if (event.metrics) this.showStats(event);
  }

  // The model's thinking is folded above the answer.
  appendThinking(text) {
    if (!this.thinking) {
      const folded = element("details", "thinking");
      this.thinking = element("p");
      folded.append(element("summary", "", "Thinking"), this.thinking);
      this.root.insertBefore(folded, this.textElement);
    }
    this.thinking.append(text);
  }

  appendSegment(segment) {
    const text = segment.display ?? segment.text; // quotes are shown without markup
    if (!segment.passage) {
      this.lastPassage = null;
      this.textElement.append(segment.drafted ? element("span", "drafted", text) : document.createTextNode(text));
      return;
    }
    const made = element("span", `segment ${tint(segment.passage)}`, text);
    const passage = this.passages[segment.passage - 1];
    made.tabIndex = 0;
    made.setAttribute("role", "button");
    made.title = `from passage ${segment.passage}, ${passage.source}`;
    showOnFocus(made, segment.passage, passage, segment.start, segment.end);
    if (this.lastPassage !== segment.passage) made.append(element("sup", "", `[${segment.passage}]`));
    this.lastPassage = segment.passage;
    this.textElement.append(made);
  }

  showCitations(annotations) {
    const list = element("ol", "cited");
    for (const { url_citation: cited } of annotations) {
      const item = element("li");
      const source = this.passages[cited.passage - 1].source;
      const quote = (cited.display_text ?? cited.cited_text).replace(/\s+/g, " ");
      const place = cited.location ? `${source}, ${cited.location}` : source;
      const button = element("button", "", `[${cited.passage}] ${place}: “${quote}”`);
      button.type = "button";
      button.addEventListener("click", () => showPassage(
        cited.passage, this.passages[cited.passage - 1], cited.passage_start, cited.passage_end));
      item.append(button);
      list.append(item);
    }
    this.root.append(list);
  }

  showStats({ usage, metrics }) {
    if (!metrics.steps) {
      this.stats.textContent = `quoted from the documents, without a language model; ${metrics.seconds.toFixed(1)} s`;
      return;
    }
    const quoted = usage.prompt_tokens_details.response_prefix_tokens;
    this.stats.textContent = (quoted ? `${quoted} tokens quoted, not generated; ` : "") + `${usage.completion_tokens} tokens in ${metrics.steps} steps, ` +
      `${metrics.tokens_per_step.toFixed(2)} tokens per step, ${metrics.seconds.toFixed(1)} s ` +
      `(first token after ${metrics.time_to_first_token_seconds.toFixed(1)} s); without drafts it takes ${usage.completion_tokens} steps`;
  }
}
