// The documents: listing, uploading by choosing or dropping files, removing. Names are inserted as text.

import { element } from "./answer.js";
import { get, remove, upload } from "./server.js";

const byId = (id) => document.getElementById(id);
let isReadOnly; // undefined until the documents are listed

const showStatus = (text) => { byId("documents-status").textContent = text; };

export async function listDocuments() {
  const found = await get("/documents");
  isReadOnly = found.read_only;
  byId("documents").hidden = found.data.length === 0 && isReadOnly;
  byId("file-picker").hidden = isReadOnly;
  byId("files").accept = found.suffixes.join(",");
  byId("document-list").replaceChildren(...found.data.map(listItem));
}

function listItem(entry) {
  const item = element("li");
  item.append(element("span", "", `${entry.name} (${entry.passages} ${entry.passages === 1 ? "passage" : "passages"})`));
  if (entry.uploaded && !isReadOnly) {
    const button = element("button", "", "Remove");
    button.type = "button";
    button.setAttribute("aria-label", `Remove ${entry.name}`);
    button.addEventListener("click", () => run(() => remove(`/documents?id=${encodeURIComponent(entry.id)}`)));
    item.append(button);
  }
  return item;
}

async function run(action) {
  try {
    await action();
    await listDocuments();
  } catch (error) {
    showStatus(error.message);
  }
}

async function uploadAll(files) {
  const bar = byId("progress");
  bar.hidden = false;
  let added = 0;
  const failed = [];
  for (const file of files) {
    bar.value = 0;
    showStatus(`Adding ${file.name}`);
    try {
      const { skipped } = await upload(file, (share) => {
        if (share < 1) bar.value = share;
        else bar.removeAttribute("value"); // uploaded; the server is indexing it
      });
      added += 1;
      for (const { name, reason } of skipped) failed.push(`${name}: skipped, ${reason}.`);
    } catch (error) {
      failed.push(`${file.name}: ${error.message}`);
    }
  }
  bar.hidden = true;
  showStatus([`Added ${added}.`, ...failed].join(" "));
  await listDocuments();
}

export function enableUploads() {
  byId("files").addEventListener("change", (event) => uploadAll([...event.target.files]));
  document.addEventListener("dragover", (event) => {
    if (isReadOnly) return;
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  document.addEventListener("dragleave", () => document.body.classList.remove("dropping"));
  document.addEventListener("drop", async (event) => {
    if (isReadOnly) return;
    event.preventDefault();
    document.body.classList.remove("dropping");
    const files = [...event.dataTransfer.files]; // the event holds them only synchronously
    if (isReadOnly === undefined) await run(() => {});
    if (isReadOnly === false) uploadAll(files);
  });
}
