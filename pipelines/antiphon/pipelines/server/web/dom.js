// Elements of the page. All text is inserted as text, because documents are not trusted; markdown.js is the exception.

export const byId = (id) => document.getElementById(id);

export function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

export function button(text, onClick, className = "") {
  const made = element("button", className, text);
  made.type = "button";
  made.addEventListener("click", onClick);
  return made;
}

// Appends text to the last text of an element, so that an answer of many tokens has few nodes.
export function appendText(parent, text) {
  if (parent.lastChild instanceof Text) parent.lastChild.appendData(text);
  else parent.append(text);
}

export function showStatus(text, isError = false) {
  byId("status").textContent = text;
  byId("status").classList.toggle("error", isError);
}

// Copies a text to the clipboard and says so.
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    showStatus("Copied");
  } catch { // only pages with TLS, and those of this machine, may use the clipboard
    showStatus("This browser does not allow copying here; select the text instead.", true);
  }
}

// Characters start to end of a text. The server counts code points, and strings of JavaScript UTF-16 units.
export const slice = (text, start, end) => Array.from(text).slice(start, end).join("");

export const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
