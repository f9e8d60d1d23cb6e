// The documents of the chosen collection: listing, adding by choosing or dropping, removing.

import { button, byId, element, plural } from "./dom.js";
import { currentModel } from "./models.js";
import { get, remove, withParameters } from "./server.js";
import { addFiles, droppedFiles, stopAdding } from "./uploads.js";

let target; // { collection, suffixes, isReadOnly }; undefined until the documents are listed

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
  byId("documents-count").textContent = String(found.data.length);
  byId("document-list").replaceChildren(...found.data.map(listItem));
}

function listItem(entry) {
  const { collection, isReadOnly } = target;
  const item = element("li");
  const name = element("span", "document-name", entry.name);
  name.title = entry.name; // a long name is cut off
  item.append(name, element("span", "caption", plural(entry.passages, "passage")));
  if (entry.uploaded && !isReadOnly) {
    const remover = button("×", () => run(async () => {
      await remove(withParameters("/documents", { id: entry.id, collection }));
      byId("documents").focus();
    }), "small");
    remover.setAttribute("aria-label", `Remove ${entry.name}`);
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
