// The conversation: asks questions, shows answers while they stream, and asks again from an earlier question.

import { Answer, newRecord } from "./answer.js";
import { button, byId, copy, element, showStatus } from "./dom.js";
import { follow, followIfAtEnd } from "./following.js";
import { addressOf, findConversation, idInAddress, saveConversation, setCurrent } from "./history.js";
import { chooseModel, currentModel, isExtractive, shownName } from "./models.js";
import { openPassage } from "./passage.js";
import { ask } from "./server.js";
import { describeComparison } from "./speed.js";

const VARIED = 0.7; // the temperature of an answer that is asked for again
const newId = () => `${Date.now()}-${Math.random().toString(36).slice(2)}`;
let conversationId = newId();
let turns = []; // { question, model, collection, fields, record, root, answers, answer }
let running = null;

export const isBusy = () => running !== null;
export const stop = () => running?.abort();

const NOT_FOUND = "This conversation is not saved in this browser.";

// Shows the conversation that the address names, or a new one.
export function openAddress() {
  const id = idInAddress();
  if (id === conversationId && turns.length) return;
  const found = id && findConversation(id);
  if (found) openConversation(found);
  else clear();
  if (id && !found) showStatus(NOT_FOUND, true);
}

// Starts a new conversation.
export function startConversation() {
  if (idInAddress()) history.pushState(null, "", location.pathname);
  clear();
}

function clear() {
  stop();
  becomeIdle();
  turns = [];
  conversationId = newId();
  byId("conversation").replaceChildren();
  showStatus("");
  setCurrent("");
  showState();
}

function openConversation({ id, turns: saved }) {
  clear();
  conversationId = id;
  turns = saved.map((each) => ({ ...each }));
  for (const turn of turns) {
    showTurn(turn);
    turn.answer.restore();
    addActions(turn);
  }
  if (!chooseModel(turns.at(-1).model)) showStatus("What answered this conversation is not available now.", true);
  else byId("model").dispatchEvent(new Event("change"));
  setCurrent(id);
  showState();
  follow();
}

// Asks a new question at the end of the conversation.
export async function submitQuestion(question) {
  await run({ question, ...chosenModel(), fields: {}, record: newRecord() });
}

const chosenModel = () => ({ model: currentModel().id, collection: currentModel().collection });

// Shows what depends on the conversation: the start, the title, and the switch of the speed view.
function showState() {
  byId("welcome").hidden = turns.length > 0;
  document.body.classList.toggle("is-empty", turns.length === 0);
  document.title = turns.length ? `${turns[0].question} · Antiphon` : "Antiphon";
  byId("speed").hidden = !turns.some(({ record }) => record.isDecoded);
}

function showTurn(turn) {
  turn.root = element("article", "turn");
  const question = element("div", "question-row");
  question.append(element("h2", "question", turn.question), button("Edit", () => editQuestion(turn), "small edit"));
  turn.answers = element("div", "answers");
  turn.root.append(question, turn.answers);
  turn.answer = new Answer(turn.answers, turn.record, opener(turn), shownName(turn));
  byId("conversation").append(turn.root);
}

const opener = (turn) => (passage, cited) => openPassage(turn.collection, passage, cited);

function messagesOf(earlier, question) {
  const spoken = earlier.flatMap(({ question: asked, record }) => [
    { role: "user", content: asked }, { role: "assistant", content: record.text },
  ]);
  return [...spoken, { role: "user", content: question }];
}

// Streams the answer of a turn, which becomes the last one of the conversation.
async function run(turn) {
  if (running) return;
  const current = running = new AbortController();
  const earlier = [...turns];
  turns.push(turn);
  showTurn(turn);
  showState();
  becomeBusy();
  follow();
  let failure = null;
  try {
    await stream(turn, turn.answer, messagesOf(earlier, turn.question), turn.fields, current.signal);
  } catch (error) {
    failure = error;
  }
  if (running !== current) return; // another conversation was started meanwhile
  const isStopped = current.signal.aborted;
  turn.answer.finish();
  addActions(turn);
  if (failure && (!isStopped || !turn.record.text)) {
    turns = earlier;
    if (!turn.record.text) turn.root.remove();
    byId("question").value ||= turn.question; // so that the user can send it again
  }
  if (!failure || isStopped) saveConversation({ id: conversationId, turns: turns.map(savedTurn) });
  if (findConversation(conversationId) && idInAddress() !== conversationId) {
    history.pushState(null, "", addressOf(conversationId));
  }
  showState();
  showStatus(isStopped ? "Stopped" : failure?.message ?? "Answered", Boolean(failure) && !isStopped);
  becomeIdle();
  followIfAtEnd();
}

const savedTurn = ({ question, model, collection, fields, record }) => ({ question, model, collection, fields, record });

async function stream({ model }, answer, messages, fields, signal) {
  const options = { include_usage: true, include_segments: true };
  for await (const event of ask({ model, messages, stream: true, stream_options: options, ...fields }, signal)) {
    answer.push(event);
    followIfAtEnd();
  }
}

function becomeBusy() {
  document.body.classList.add("busy");
  byId("stop").hidden = false;
  byId("send").hidden = true;
  showStatus("Answering");
}

function becomeIdle() {
  running = null;
  document.body.classList.remove("busy");
  byId("stop").hidden = true;
  byId("send").hidden = false;
  if (!document.querySelector("dialog[open]")) byId("question").focus({ preventScroll: true });
}

function addActions(turn) {
  const row = turn.answer.footer;
  row.append(button("Copy", () => copy(turn.record.text), "small"), button("Try again", () => tryAgain(turn), "small again"));
  if (turn.record.metrics?.steps) {
    row.append(button("Compare with plain decoding", () => compare(turn), "small speed-only"));
  }
}

// Removes a turn and the turns after it.
function removeFrom(turn) {
  const first = turns.indexOf(turn);
  for (const each of first < 0 ? [turn] : turns.splice(first)) each.root.remove();
}

// Asks the last question again; a language model may then answer in other words.
function tryAgain(turn) {
  if (running) return;
  removeFrom(turn);
  const model = chosenModel();
  const seed = Math.floor(Math.random() * 2 ** 31);
  const fields = isExtractive(model.model) ? {} : { temperature: VARIED, seed };
  run({ question: turn.question, ...model, fields, record: newRecord() });
}

// Replaces a question by a field to change it; the conversation goes on from there.
function editQuestion(turn) {
  if (running) return;
  const row = turn.root.querySelector(".question-row");
  const form = element("form", "edit-form");
  const field = element("textarea");
  field.value = turn.question;
  field.rows = 2;
  field.setAttribute("aria-label", "Edit the question");
  const close = () => {
    form.replaceWith(row);
    row.querySelector("button").focus();
  };
  const send = () => {
    const question = field.value.trim();
    if (!question || running) return;
    removeFrom(turn);
    submitQuestion(question);
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  const buttons = element("div", "actions");
  buttons.append(element("button", "small primary", "Ask again from here"), button("Cancel", close, "small"));
  form.append(field, buttons);
  row.replaceWith(form);
  field.focus();
}

// Asks the same question without drafts. This runs after the answer, so that the two do not share the processor.
async function compare(turn) {
  if (running) return;
  const current = running = new AbortController();
  becomeBusy();
  turn.root.querySelector(".comparison")?.remove();
  const place = element("div", "comparison speed-only");
  turn.answers.append(place);
  const record = newRecord();
  const answer = new Answer(place, record, opener(turn), "Plain decoding");
  const earlier = turns.slice(0, turns.indexOf(turn));
  let message = "";
  try {
    await stream(turn, answer, messagesOf(earlier, turn.question), { ...turn.fields, plain: true }, current.signal);
    message = describeComparison(turn.record, record);
    answer.finish();
    answer.root.append(element("p", "caption result", message));
  } catch (error) {
    if (running !== current) return;
    place.remove();
    message = current.signal.aborted ? "Stopped" : error.message;
  }
  if (running !== current) return;
  showStatus(message);
  becomeIdle();
  place.scrollIntoView({ block: "nearest" });
}
