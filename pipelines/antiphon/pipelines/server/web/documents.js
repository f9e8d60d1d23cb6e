// The documents: listed, added by choosing or dropping, taken out. Names are shown as text.

import { element } from "./answer.js";
import { get, remove, upload } from "./server.js";

const byId = (id) => document.getElementById(id);
let isReadOnly; // not known before the documents were listed

const tell = (text) => { byId("told").textContent = text; };

export async function listDocuments() {
  const found = await get("/documents");
  isReadOnly = found.read_only;
  byId("documents").hidden = found.data.length === 0 && isReadOnly;
  byId("dropping").hidden = isReadOnly;
  byId("files").accept = found.suffixes.join(",");
  byId("list").replaceChildren(...found.data.map(line));
}

function line(entry) {
  const item = element("li");
  item.append(element("span", "", `${entry.name} (${entry.passages} ${entry.passages === 1 ? "passage" : "passages"})`));
  if (entry.uploaded && !isReadOnly) {
    const button = element("button", "", "Remove");
    button.type = "button";
    button.setAttribute("aria-label", `Remove ${entry.name}`);
    button.addEventListener("click", () => take(() => remove(`/documents?id=${encodeURIComponent(entry.id)}`)));
    item.append(button);
  }
  return item;
}

async function take(act) {
  try {
    await act();
    await listDocuments();
  } catch (error) {
    tell(error.message);
  }
}

async function add(files) {
  const bar = byId("progress");
  bar.hidden = false;
  let added = 0;
  const failed = [];
  for (const file of files) {
    bar.value = 0;
    tell(`Adding ${file.name}`);
    try {
      await upload(file, (share) => {
        if (share < 1) bar.value = share;
        else bar.removeAttribute("value"); // it has arrived, and is being indexed
      });
      added += 1;
    } catch (error) {
      failed.push(`${file.name}: ${error.message}`);
    }
  }
  bar.hidden = true;
  tell([`Added ${added}.`, ...failed].join(" "));
  await listDocuments();
}

export function takeFiles() {
  byId("files").addEventListener("change", (event) => add([...event.target.files]));
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
    const files = [...event.dataTransfer.files]; // the event holds them only now
    if (isReadOnly === undefined) await take(() => {});
    if (isReadOnly === false) add(files);
  });
}
