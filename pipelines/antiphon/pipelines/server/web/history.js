// Earlier conversations, in this browser's storage only. They hold questions and answers, and never the API key.

import { button, byId, element } from "./dom.js";
import { load, store } from "./storage.js";

const NAME = "antiphon-conversations", SAVES = "antiphon-save-conversations";
const MAX_CONVERSATIONS = 50;
const ADDRESS = "#/c/";
let currentId = "";

// The address of a conversation, and the id of the one that the page's address names.
export const addressOf = (id) => ADDRESS + id;
export const idInAddress = () => (location.hash.startsWith(ADDRESS) ? location.hash.slice(ADDRESS.length) : "");

export const isSaving = () => load("localStorage", SAVES) !== "no";

function conversations() {
  try {
    const found = JSON.parse(load("localStorage", NAME) ?? "[]");
    return found.filter((each) => each.turns.length);
  } catch {
    return [];
  }
}

// Stores conversations, newest first. If the browser has no room for all, the oldest are left out.
function keep(all) {
  const kept = all.slice(0, MAX_CONVERSATIONS);
  while (!store("localStorage", NAME, JSON.stringify(kept)) && kept.length > 1) kept.pop();
  showHistory();
}

export const findConversation = (wanted) => conversations().find(({ id }) => id === wanted);
const others = (id) => conversations().filter((each) => each.id !== id);

// Saves a conversation: `{ id, turns }`.
export function saveConversation(conversation) {
  currentId = conversation.id;
  if (isSaving() && conversation.turns.length) keep([conversation, ...others(conversation.id)]);
}

export function setCurrent(id) {
  currentId = id;
  showHistory();
}

export function showHistory() {
  const all = conversations();
  byId("history-list").replaceChildren(...all.map(listItem));
  byId("history-empty").hidden = all.length > 0;
  byId("history-clear").hidden = all.length === 0;
}

function listItem(conversation) {
  const title = conversation.turns[0].question;
  const item = element("li");
  const opener = element("a", "history-title", title);
  opener.href = addressOf(conversation.id);
  if (conversation.id === currentId) opener.setAttribute("aria-current", "true");
  const deleter = button("×", () => {
    keep(others(conversation.id));
    byId("history").focus();
  }, "small");
  deleter.setAttribute("aria-label", `Delete the conversation: ${title}`);
  item.append(opener, deleter);
  return item;
}

export function enableHistory() {
  byId("history-save").checked = isSaving();
  byId("history-save").addEventListener("change", (event) => store("localStorage", SAVES, event.target.checked ? "yes" : "no"));
  byId("history-clear").addEventListener("click", () => {
    if (!confirm("Delete all conversations from this browser?")) return;
    keep([]);
    byId("history").focus();
  });
}
