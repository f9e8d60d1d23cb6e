// The speed view: which text of an answer was drafted, from which passage, and how fast the model was.

import { appendText, element } from "./dom.js";

const COLOURS = 7;
export const tint = (passage) => `p${(passage - 1) % COLOURS}`;

// The text of an answer as runs: drafted text in the colour of the passage that it was copied from.
export class Runs {
  constructor(root, open) {
    this.root = root;
    this.open = open;
    this.lastPassage = null;
  }

  push(segment, passages) {
    const text = segment.display ?? segment.text; // quotes are shown without markup
    if (!segment.passage) {
      this.lastPassage = null;
      if (segment.drafted) this.root.append(element("span", "drafted", text));
      else appendText(this.root, text);
      return;
    }
    const { passage, start, end } = segment;
    const made = element("span", `segment ${tint(passage)}`, text); // no button, which would not wrap with the text
    const open = () => this.open(passage, { passage_start: start, passage_end: end });
    made.tabIndex = 0;
    made.setAttribute("role", "button");
    made.addEventListener("click", open);
    made.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      open();
    });
    made.title = `from passage ${passage}, ${passages[passage - 1].source}`;
    if (this.lastPassage !== passage) made.append(element("sup", "", `[${passage}]`));
    this.lastPassage = passage;
    this.root.append(made);
  }
}

// Tokens per second after the first token; undefined if there are too few tokens to tell.
export function tokensPerSecond({ usage, metrics }) {
  const seconds = metrics.seconds - metrics.time_to_first_token_seconds;
  return usage.completion_tokens > 1 && seconds > 0 ? (usage.completion_tokens - 1) / seconds : undefined;
}

export function describeSpeed(record) {
  const { usage, metrics } = record;
  const quoted = usage.prompt_tokens_details?.response_prefix_tokens;
  const rate = tokensPerSecond(record);
  return [
    ...(quoted ? [`${quoted} tokens quoted, not generated`] : []),
    `${usage.completion_tokens} tokens in ${metrics.steps} forward passes (${metrics.tokens_per_step.toFixed(2)} each)`,
    ...(rate ? [`${rate.toFixed(1)} tokens per second`] : []),
    `first token after ${metrics.time_to_first_token_seconds.toFixed(1)} s`,
  ].join("; ");
}

// The result of decoding the same answer with and without drafts.
export function describeComparison(drafted, plain) {
  const [fast, slow] = [tokensPerSecond(drafted), tokensPerSecond(plain)];
  const same = drafted.text === plain.text ? "Both texts are the same." : "The texts differ.";
  return fast && slow ? `${same} With drafts: ${(fast / slow).toFixed(2)} times as many tokens per second.` : same;
}
