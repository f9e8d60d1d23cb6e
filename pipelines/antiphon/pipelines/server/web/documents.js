// The documents of the chosen collection: listing in folders, searching, opening, adding and removing.

import { button, byId, element } from "./dom.js";
import { currentModel } from "./models.js";
import { openDocument } from "./passage.js";
import { get, remove, withParameters } from "./server.js";
import { FOLDER, addFiles, droppedFiles, stopAdding } from "./uploads.js";

let target; // { collection, suffixes, isReadOnly }; undefined until the documents are listed
const openFolders = new Set(); // stay open when the list is shown again
let documents = []; // { id, name, path, passages, uploaded }

const showStatus = (text) => { byId("documents-status").textContent = text; };

export async function listDocuments() {
  const { collection } = currentModel();
  byId("documents").hidden = !collection;
  target = undefined;
  if (!collection) return;
  const found = await get(withParameters("/documents", { collection }));
  if (currentModel().collection !== collection) return; // another one was chosen meanwhile
  target = { collection, suffixes: found.suffixes, isReadOnly: found.read_only };
  byId("file-picker").hidden = target.isReadOnly;
  byId("files").accept = found.suffixes.join(",");
  documents = found.data.map((entry) => ({ ...entry, path: [...entry.folder.split("/"), ...entry.name.split(FOLDER)].filter(Boolean) }));
  byId("documents-count").textContent = String(documents.length);
  byId("document-search").hidden = !documents.length;
  showList();
}

// Shows all documents in their folders, or the documents whose names contain the words of the search.
function showList() {
  const words = byId("document-search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const hasWords = ({ path }) => words.every((word) => path.join("/").toLowerCase().includes(word));
  const items = words.length
    ? documents.filter(hasWords).map((entry) => listItem(entry, entry.path.join("/")))
    : listFolder(documents, 0);
  byId("document-list").replaceChildren(...(items.length ? items : [element("li", "caption", "No document has these words in its name.")]));
}

// Returns the items of one level of folders: first the folders, with the documents in them, then the documents.
function listFolder(entries, level) {
  const folders = Map.groupBy(entries.filter(({ path }) => path.length > level + 1), ({ path }) => path[level]);
  const items = [...folders].map(([name, inside]) => {
    const item = element("li", "folder"), folder = element("details"), list = element("ul", "plain");
    folder.append(element("summary", "", name), list);
    const key = inside[0].path.slice(0, level + 1).join("/");
    folder.open = openFolders.has(key);
    folder.addEventListener("toggle", () => { // also if it is open from the beginning
      openFolders[folder.open ? "add" : "delete"](key);
      list.replaceChildren(...(folder.open ? listFolder(inside, level + 1) : []));
    });
    item.append(folder);
    return item;
  });
  const here = entries.filter(({ path }) => path.length === level + 1);
  return [...items, ...here.map((entry) => listItem(entry, entry.path.at(-1)))];
}

function listItem(entry, shown) {
  const { collection, isReadOnly } = target;
  const item = element("li");
  const opener = button(shown, () => openDocument(collection, entry), "document-name");
  opener.title = entry.path.join("/"); // a long name is cut off
  item.append(opener);
  if (entry.uploaded && !isReadOnly) {
    const remover = button("×", () => run(async () => {
      await remove(withParameters("/documents", { id: entry.id, collection }));
      byId("documents").focus();
    }), "small");
    remover.setAttribute("aria-label", `Remove ${entry.path.join("/")}`);
    item.append(remover);
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

async function add(files) {
  if (target === undefined) await run(() => {});
  if (target && !target.isReadOnly) await addFiles(files, target, () => run(() => {}));
}

export function enableUploads() {
  const choose = (event) => {
    const files = [...event.target.files].map((file) => ({ file, name: file.webkitRelativePath || file.name }));
    event.target.value = ""; // so that the same file can be chosen again
    return add(files);
  };
  byId("document-search").addEventListener("input", showList);
  byId("files").addEventListener("change", choose);
  byId("folder").addEventListener("change", choose);
  byId("upload-stop").addEventListener("click", stopAdding);
  const mayDrop = () => currentModel().collection && !target?.isReadOnly;
  document.addEventListener("dragover", (event) => {
    if (!mayDrop() || !event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  document.addEventListener("dragleave", () => document.body.classList.remove("dropping"));
  document.addEventListener("drop", async (event) => {
    if (!mayDrop()) return;
    event.preventDefault();
    document.body.classList.remove("dropping");
    const items = [...event.dataTransfer.items].filter((item) => item.kind === "file");
    await run(async () => add(await droppedFiles(items))); // the event has its items only synchronously
  });
}
