// The page: sends questions and shows answers while they stream. The conversation is kept in this page only.

import { Answer, element } from "./answer.js";
import { listDocuments, enableUploads } from "./documents.js";
import { ask, get, useKey } from "./server.js";
import { load, store } from "./storage.js";

const byId = (id) => document.getElementById(id);
let turns = [];
let running = null;

const showStatus = (text, isError = false) => {
  byId("status").textContent = text;
  byId("status").classList.toggle("error", isError);
};

async function start() {
  try {
    const { data } = await get("/v1/models");
    const names = data.map((entry) => entry.id).sort((one, other) => other.includes("+") - one.includes("+"));
    byId("model").replaceChildren(...names.map((name) => element("option", "", name)));
    byId("unlock").hidden = true;
    await listDocuments();
  } catch (error) {
    byId("unlock").hidden = error.status !== 401;
    showStatus(error.message, true);
  }
}

async function streamAnswer(parent, messages, caption, fields, signal) {
  const shown = new Answer(parent, caption);
  const options = { include_usage: true, include_segments: true };
  const body = { model: byId("model").value, messages, stream: true, stream_options: options, ...fields };
  for await (const event of ask(body, signal)) shown.push(event);
  return shown.text;
}

async function submit(event) {
  event.preventDefault();
  const question = byId("question").value.trim();
  if (!question || running) return;
  const current = running = new AbortController();
  const turn = element("article", "turn");
  turn.append(element("h2", "question", question));
  const isCompared = byId("compare").checked;
  const answers = element("div", isCompared ? "compare" : "");
  turn.append(answers);
  byId("conversation").append(turn);
  const messages = [...turns, { role: "user", content: question }];
  byId("question").value = "";
  byId("stop").hidden = false;
  byId("send").disabled = true;
  showStatus("Answering");
  try {
    const { signal } = current;
    const streams = [streamAnswer(answers, messages, isCompared ? "With drafts" : "", {}, signal)];
    if (isCompared) streams.push(streamAnswer(answers, messages, "Without drafts", { plain: true }, signal));
    const [text] = await Promise.all(streams);
    if (running !== current) return;
    turns = [...messages, { role: "assistant", content: text }];
    showStatus("Answered");
  } catch (error) {
    if (running !== current) return; // a new conversation was started meanwhile
    const isStopped = current.signal.aborted;
    current.abort(); // also stops the answer that it is compared with
    if (!isStopped) byId("question").value ||= question; // so that the user can send it again
    showStatus(isStopped ? "Stopped" : error.message, !isStopped);
  } finally {
    if (running === current) becomeIdle();
  }
}

function becomeIdle() {
  running = null;
  byId("stop").hidden = true;
  byId("send").disabled = false;
  byId("question").focus();
}

function setTheme(name) {
  document.documentElement.classList.remove("dark", "light");
  document.documentElement.classList.add(name);
  showTheme();
  store("localStorage", "antiphon-theme", name);
}

byId("ask").addEventListener("submit", submit);
byId("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
});
byId("stop").addEventListener("click", () => running?.abort());
byId("new-conversation").addEventListener("click", () => {
  running?.abort();
  turns = [];
  byId("conversation").replaceChildren();
  showStatus("");
  becomeIdle();
});
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => document.documentElement.classList.contains("dark") ||
  (!document.documentElement.classList.contains("light") && prefersDark.matches);
const showTheme = () => byId("theme").setAttribute("aria-pressed", String(isDark()));
byId("theme").addEventListener("click", () => setTheme(isDark() ? "light" : "dark"));
prefersDark.addEventListener("change", showTheme);
byId("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(byId("key").value);
  showStatus("");
  start();
});
const chosen = load("localStorage", "antiphon-theme");
if (chosen === "dark" || chosen === "light") setTheme(chosen);
showTheme();
enableUploads();
start();
