// The page: connects the parts, and lists what the API key may use.

import { isBusy, openAddress, startConversation, stop, submitQuestion } from "./conversation.js";
import { byId, showStatus } from "./dom.js";
import { enableUploads, listDocuments } from "./documents.js";
import { enableHistory } from "./history.js";
import { showExamples } from "./examples.js";
import { listModels, onModelChange } from "./models.js";
import { useKey } from "./server.js";
import { enableSettings } from "./settings.js";

async function start() {
  try {
    await listModels();
    byId("unlock").hidden = true;
    byId("history").hidden = false; // without a key they stay hidden
    openAddress();
    await showDocuments();
  } catch (error) {
    byId("unlock").hidden = error.status !== 401;
    showStatus(error.message, true);
  }
}

const showDocuments = () => Promise.all([listDocuments(), showExamples(submitQuestion)]);

function submit(event) {
  event.preventDefault();
  const question = byId("question").value.trim();
  if (!question || isBusy()) return;
  byId("question").value = "";
  submitQuestion(question);
}

// On small screens the side is above the page until it is closed.
function showSide(isShown) {
  document.body.classList.toggle("side-open", isShown);
  byId("menu").setAttribute("aria-expanded", String(isShown));
  byId("main").inert = isShown;
  (isShown ? byId("side-close") : byId("menu")).focus();
}

const closeSide = () => document.body.classList.contains("side-open") && showSide(false);

byId("ask").addEventListener("submit", submit);
byId("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
});
byId("stop").addEventListener("click", stop);
byId("menu").addEventListener("click", () => showSide(true));
byId("side-close").addEventListener("click", closeSide);
matchMedia("(min-width: 60rem)").addEventListener("change", closeSide);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open], :popover-open")) closeSide();
});
byId("new-conversation").addEventListener("click", () => {
  closeSide();
  startConversation();
});
byId("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(byId("key").value);
  showStatus("");
  start();
});
enableSettings();
enableHistory();
addEventListener("hashchange", () => {
  closeSide();
  openAddress();
});
enableUploads();
onModelChange(() => showDocuments().catch((error) => showStatus(error.message, true)));
start();
