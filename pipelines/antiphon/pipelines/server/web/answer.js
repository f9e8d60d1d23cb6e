// An answer on the page: runs in the colour of their passage, citations, figures. Every text goes in as text, never as
// markup: documents are not to be trusted.

const COLOURS = 7;
const byId = (id) => document.getElementById(id);

export function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

const tint = (passage) => `p${(passage - 1) % COLOURS}`;

// The passage beside the answer, with characters start to end of it marked.
export function showPassage(number, passage, start, end) {
  const name = passage.title ? `${passage.source}: ${passage.title}` : passage.source;
  byId("place").textContent = `[${number}] ${name}, characters ${passage.start + start} to ${passage.start + end}`;
  const marked = element("mark", tint(number), passage.text.slice(start, end));
  byId("text").replaceChildren(passage.text.slice(0, start), marked, passage.text.slice(end));
  marked.scrollIntoView({ block: "nearest" });
}

function shows(made, number, passage, start, end) {
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
    this.said = element("div", "said");
    this.figures = element("p", "figures");
    this.root.append(this.said, this.figures);
    parent.append(this.root);
    this.passages = [];
    this.text = "";
    this.last = null;
  }

  take(event) {
    if (event.passages) this.passages = event.passages;
    const delta = event.choices?.[0]?.delta ?? {};
    if (event.runs) for (const run of event.runs) this.run(run);
    else if (delta.content) this.run({ text: delta.content });
    if (delta.content) this.text += delta.content;
    if (delta.annotations?.length) this.cite(delta.annotations);
    if (event.metrics) this.cost(event);
  }

  run(run) {
    if (!run.passage) {
      this.last = null;
      this.said.append(run.drafted ? element("span", "drafted", run.text) : document.createTextNode(run.text));
      return;
    }
    const made = element("span", `run ${tint(run.passage)}`, run.text);
    const passage = this.passages[run.passage - 1];
    made.tabIndex = 0;
    made.setAttribute("role", "button");
    made.title = `from passage ${run.passage}, ${passage.source}`;
    shows(made, run.passage, passage, run.start, run.end);
    if (this.last !== run.passage) made.append(element("sup", "", `[${run.passage}]`));
    this.last = run.passage;
    this.said.append(made);
  }

  cite(annotations) {
    const list = element("ol", "cited");
    for (const { url_citation: cited } of annotations) {
      const item = element("li");
      const button = element("button", "", `[${cited.passage}] ${cited.title}: “${cited.cited_text.replace(/\s+/g, " ")}”`);
      button.type = "button";
      button.addEventListener("click", () => showPassage(
        cited.passage, this.passages[cited.passage - 1], cited.passage_start, cited.passage_end));
      item.append(button);
      list.append(item);
    }
    this.root.append(list);
  }

  cost({ usage, metrics }) {
    const plain = usage.completion_tokens;
    this.figures.textContent = `${usage.completion_tokens} tokens in ${metrics.steps} steps, ` +
      `${metrics.tokens_per_step.toFixed(2)} tokens per step, ${metrics.seconds.toFixed(1)} s ` +
      `(first token after ${metrics.time_to_first_token_seconds.toFixed(1)} s); plain decoding takes ${plain} steps`;
  }
}
