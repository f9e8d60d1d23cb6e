// Adding files and folders to a collection: progress of each file, and why a file was skipped.

import { byId, element, plural } from "./dom.js";
import { upload } from "./server.js";

let isStopped = false;
let adding = Promise.resolve(); // files that are dropped while others are added wait for these

// Returns the files of a drop with their names; those in folders have the folder in the name.
export async function droppedFiles(items) {
  const entries = items.map((item) => item.webkitGetAsEntry?.() ?? item.getAsFile()); // only available synchronously
  return (await Promise.all(entries.map((entry) => filesBelow(entry, "")))).flat();
}

async function filesBelow(entry, folder) {
  if (!entry) return [];
  if (entry instanceof File) return [{ file: entry, name: entry.name }];
  const name = folder + entry.name;
  if (entry.isFile) return [{ file: await new Promise((resolve, reject) => entry.file(resolve, reject)), name }];
  const reader = entry.createReader();
  const found = [];
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!some.length) return found;
    for (const each of some) found.push(...await filesBelow(each, `${name}/`));
  }
}

// Stands for the slash in the names of files in folders, because the server takes what follows a slash for the name.
export const FOLDER = "\u2215";
const serverName = (name) => name.split("/").join(FOLDER);

// Adds files one after the other. `target` has the collection and the suffixes of files that can be read.
export function addFiles(files, target, onEnd) {
  adding = adding.then(() => addAll(files, target)).finally(onEnd);
  return adding;
}

export const stopAdding = () => { isStopped = true; };

async function addAll(files, target) {
  if (!files.length) return;
  isStopped = false;
  const rows = files.map(({ name }) => showRow(name));
  byId("upload-list").replaceChildren(...rows.map((row) => row.root));
  byId("uploads").hidden = byId("upload-stop").hidden = false;
  let added = 0;
  for (const [index, given] of files.entries()) {
    byId("documents-status").textContent = `Adding file ${index + 1} of ${files.length}`;
    added += await addOne(given, target, rows[index]);
  }
  byId("upload-stop").hidden = true;
  const skipped = files.length - added;
  byId("documents-status").textContent = `Added ${added}.${skipped ? ` Not added: ${skipped}.` : ""}`;
}

function showRow(name) {
  const root = element("li");
  const bar = element("progress");
  [bar.max, bar.value] = [1, 0];
  bar.setAttribute("aria-label", `Adding ${name}`);
  const state = element("span", "caption", "Waiting");
  root.append(element("span", "upload-name", name), bar, state);
  const end = (text, isError = false) => {
    bar.remove();
    state.textContent = text;
    state.classList.toggle("error", isError);
  };
  return { root, bar, state, end };
}

function reasonToSkip(name, suffixes) {
  const last = name.slice(name.lastIndexOf("/") + 1);
  if (isStopped) return "Not added: stopped";
  if (last.startsWith(".")) return "Skipped: a hidden file";
  return suffixes.some((suffix) => last.toLowerCase().endsWith(suffix)) ? "" : "Skipped: files of this type are not supported";
}

// Adds a file and returns how many were added: 1 or 0.
async function addOne({ file, name }, { collection, suffixes }, { bar, state, end }) {
  const reason = reasonToSkip(name, suffixes);
  if (reason) {
    end(reason, true);
    return 0;
  }
  state.textContent = "Sending";
  try {
    const found = await upload(file, serverName(name), collection, (share) => {
      if (share < 1) bar.value = share;
      else {
        bar.removeAttribute("value"); // sent; the server is indexing it
        state.textContent = "Reading";
      }
    });
    const problems = [...found.skipped, ...found.warnings].map((each) => `${each.name}: ${each.reason}`);
    end([`Added, ${plural(found.passages, "passage")}`, ...problems].join(". "), problems.length > 0);
    return 1;
  } catch (error) {
    end(error.message, true);
    return 0;
  }
}
