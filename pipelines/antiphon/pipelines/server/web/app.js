// The page: questions go out, answers come in while they are decoded. What is said stays here, and goes with the page.

import { Answer, element } from "./answer.js";
import { listDocuments, takeFiles } from "./documents.js";
import { keep, kept } from "./kept.js";
import { ask, get, useKey } from "./server.js";

const byId = (id) => document.getElementById(id);
let turns = [];
let running = null;

const tell = (text, isError = false) => {
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
    tell(error.message, true);
  }
}

async function answer(parent, messages, caption, more, signal) {
  const shown = new Answer(parent, caption);
  const options = { include_usage: true, include_runs: true };
  const body = { model: byId("model").value, messages, stream: true, stream_options: options, ...more };
  for await (const event of ask(body, signal)) shown.take(event);
  return shown.text;
}

async function submit(event) {
  event.preventDefault();
  const question = byId("question").value.trim();
  if (!question || running) return;
  const mine = running = new AbortController();
  const turn = element("article", "turn");
  turn.append(element("h2", "asked", question));
  const place = element("div", byId("beside").checked ? "beside" : "");
  turn.append(place);
  byId("conversation").append(turn);
  const messages = [...turns, { role: "user", content: question }];
  byId("question").value = "";
  byId("stop").hidden = false;
  byId("send").disabled = true;
  tell("Answering");
  try {
    const { signal } = mine;
    const wanted = [answer(place, messages, byId("beside").checked ? "Drafted" : "", {}, signal)];
    if (byId("beside").checked) wanted.push(answer(place, messages, "Plain", { plain: true }, signal));
    const [text] = await Promise.all(wanted);
    if (running !== mine) return;
    turns = [...messages, { role: "assistant", content: text }];
    tell("Answered");
  } catch (error) {
    if (running !== mine) return; // the conversation is another by now
    const isStopped = mine.signal.aborted;
    mine.abort(); // the answer beside it ends as well
    if (!isStopped) byId("question").value ||= question; // to be asked again
    tell(isStopped ? "Stopped" : error.message, !isStopped);
  } finally {
    if (running === mine) rest();
  }
}

function rest() {
  running = null;
  byId("stop").hidden = true;
  byId("send").disabled = false;
  byId("question").focus();
}

function theme(name) {
  document.documentElement.classList.remove("dark", "light");
  document.documentElement.classList.add(name);
  showTheme();
  keep("localStorage", "antiphon-theme", name);
}

byId("ask").addEventListener("submit", submit);
byId("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
});
byId("stop").addEventListener("click", () => running?.abort());
byId("again").addEventListener("click", () => {
  running?.abort();
  turns = [];
  byId("conversation").replaceChildren();
  tell("");
  rest();
});
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => document.documentElement.classList.contains("dark") ||
  (!document.documentElement.classList.contains("light") && prefersDark.matches);
const showTheme = () => byId("theme").setAttribute("aria-pressed", String(isDark()));
byId("theme").addEventListener("click", () => theme(isDark() ? "light" : "dark"));
prefersDark.addEventListener("change", showTheme);
byId("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(byId("key").value);
  tell("");
  start();
});
const chosen = kept("localStorage", "antiphon-theme");
if (chosen === "dark" || chosen === "light") theme(chosen);
showTheme();
takeFiles();
start();
