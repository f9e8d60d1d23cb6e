// The dialog that shows a document, or a passage in it with the cited characters marked: the text, or pages of a PDF.

import { button, byId, element, plural, slice } from "./dom.js";
import { get, getBlob, withParameters } from "./server.js";

const AROUND = [2, 20, 50]; // passages before and after, one step further with each click
const MARK = "rgba(255, 205, 0, .45)";
const dialog = byId("passage");
let latest; // what the dialog was opened for last; earlier requests that end later are ignored

function openDialog(name, place, opened) {
  latest = opened;
  byId("passage-name").textContent = name;
  byId("passage-place").textContent = place;
  byId("passage-views").hidden = true;
  byId("passage-body").replaceChildren(element("p", "caption", "Loading"));
  if (!dialog.open) dialog.showModal();
  return opened;
}

// Shows an error at the end of the dialog, if the dialog still shows the same view.
function report(opened, error) {
  if (latest === opened) byId("passage-body").append(element("p", "error", error.message));
}

// Opens the dialog with a passage. `cited` has the characters of the passage, passage_start to passage_end, or is undefined.
export async function openPassage(collection, passage, cited) {
  const opened = openDialog(passage.source, cited?.location || passage.location || passage.title || "", {
    collection, id: passage.id, start: cited?.passage_start ?? 0, end: cited?.passage_end ?? 0, step: 0,
  });
  try {
    const isText = showContext(opened, await load(opened, "context", { around: AROUND[0] }));
    if (isText && passage.source.toLowerCase().endsWith(".pdf")) await showPages(opened);
  } catch (error) {
    byId("passage-body").replaceChildren();
    report(opened, error);
  }
}

// Opens the dialog with a document from its beginning.
export async function openDocument(collection, { id, path: names, passages: count }) {
  const text = element("div", "document-text"), pages = element("div", "pages");
  const opened = openDialog(names.at(-1), plural(count, "passage"), { text });
  const shown = new Set(); // numbers of pages
  let before;
  const loadPart = async (start) => {
    const { data: passages, next } = await get(withParameters("/documents/passages", { collection, id, start }));
    for (const passage of passages) {
      const isSame = passage.source === before?.source; // an archive has several documents
      if (!isSame && passage.source !== names.at(-1)) text.append(element("h3", "", passage.source));
      text.append(element("p", "", slice(passage.text, isSame ? Math.max(before.end - passage.start, 0) : 0)));
      before = passage;
      for (const page of passage.pages.filter((each) => !shown.has(each))) {
        shown.add(page);
        pages.append(pageLater(opened, path({ collection, id: passage.id }, "page.png", { page }), page));
      }
    }
    for (const view of next ? [text, pages] : []) {
      const more = button("Show more of the document", () => {
        for (const each of [text, pages]) each.querySelector(".more")?.remove();
        loadPart(next).catch((error) => report(opened, error));
      }, "more");
      view.append(more);
    }
  };
  try {
    await loadPart(0);
    if (latest !== opened) return;
    show(text);
    if (!shown.size) return;
    await pages.firstChild.load();
    if (latest === opened) offerViews(opened, pages);
  } catch (error) {
    if (error.status !== 404 || !shown.size) report(opened, error); // 404: there is no image of the page
  }
}

// An element that becomes a page when it is scrolled to.
function pageLater(opened, address, page) {
  const waiting = element("div", "page page-later", `Page ${page}`);
  waiting.load = async () => {
    observer.disconnect();
    waiting.replaceWith(drawPage({ page, boxes: [] }, await getBlob(address).then(createImageBitmap)));
  };
  const observer = new IntersectionObserver(([entry]) => {
    if (entry.isIntersecting) waiting.load().catch((error) => report(opened, error));
  }, { root: byId("passage-body"), rootMargin: "100%" });
  observer.observe(waiting);
  return waiting;
}

const path = ({ collection, id }, name, parameters) =>
  withParameters(`/passages/${encodeURIComponent(id)}/${name}`, { ...parameters, collection });
const load = (opened, name, parameters) => get(path(opened, name, parameters));

// Shows the passages around the cited one; returns whether the dialog still shows this passage.
function showContext(opened, { passages, before, after }) {
  if (latest !== opened) return false;
  const text = element("div", "document-text");
  if (before) text.append(element("p", "caption", `${plural(before, "earlier passage")} not shown`));
  let end = 0;
  for (const each of passages) {
    const from = Math.max(end - each.start, 0); // characters that the passage before has already
    end = Math.max(end, each.end);
    text.append(each.id === opened.id ? citedPassage(each, opened) : element("p", "neighbour", slice(each.text, from)));
  }
  if (after) text.append(element("p", "caption", `${plural(after, "later passage")} not shown`));
  const next = AROUND[opened.step + 1];
  if (next && (before || after)) text.append(button("Show more of the document", () => showMore(opened, next)));
  opened.text = text;
  show(text);
  return true;
}

function citedPassage({ text }, { start, end }) {
  const made = element("p", "cited-passage");
  if (end > start) made.append(slice(text, 0, start), element("mark", "", slice(text, start, end)), slice(text, end));
  else made.append(text);
  return made;
}

async function showMore(opened, around) {
  opened.step += 1;
  try {
    showContext(opened, await load(opened, "context", { around }));
  } catch (error) {
    report(opened, error);
  }
}

// Shows a view, scrolled so that what is marked is in the middle.
function show(view) {
  byId("passage-body").replaceChildren(view);
  byId("passage-body").scrollTop = 0;
  const marked = view.querySelector("mark, .page-mark") ?? view.querySelector(".cited-passage");
  marked?.scrollIntoView({ block: "center" });
}

// Offers the pages of a PDF file, and shows them first; without an image of them the text stays.
async function showPages(opened) {
  const part = opened.end > opened.start ? { start: opened.start, end: opened.end } : {};
  let pages;
  try {
    ({ data: pages } = await load(opened, "pages", part));
    if (!pages.length) return;
    const images = await Promise.all(pages.map(({ page }) => getBlob(path(opened, "page.png", { page })).then(createImageBitmap)));
    if (latest !== opened) return;
    const drawn = element("div", "pages");
    pages.forEach((page, index) => drawn.append(drawPage(page, images[index])));
    offerViews(opened, drawn);
  } catch (error) {
    if (error.status !== 404) throw error; // 404: there is no image of the page
  }
}

function drawPage({ page, boxes }, image) {
  const figure = element("figure", "page");
  const canvas = element("canvas");
  [canvas.width, canvas.height] = [image.width, image.height];
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  context.globalCompositeOperation = "multiply";
  context.fillStyle = MARK;
  for (const [left, top, right, bottom] of boxes) {
    context.fillRect(left * image.width, top * image.height, (right - left) * image.width, (bottom - top) * image.height);
  }
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", boxes.length ? `Page ${page} with the quoted text marked` : `Page ${page}`);
  figure.append(canvas, element("figcaption", "caption", `Page ${page}`));
  if (boxes.length) {
    const anchor = element("span", "page-mark"); // a place to scroll to
    anchor.style.top = `${boxes[0][1] * 100}%`;
    figure.append(anchor);
  }
  return figure;
}

function offerViews(opened, pages) {
  const choose = (isPage) => {
    byId("view-page").setAttribute("aria-pressed", String(isPage));
    byId("view-text").setAttribute("aria-pressed", String(!isPage));
    show(isPage ? pages : opened.text);
  };
  byId("view-page").onclick = () => choose(true);
  byId("view-text").onclick = () => choose(false);
  byId("passage-views").hidden = false;
  choose(true);
}

byId("passage-close").addEventListener("click", () => dialog.close());
dialog.addEventListener("click", (event) => {
  if (event.target === dialog) dialog.close(); // the backdrop
});
