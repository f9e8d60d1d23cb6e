// The dialog that shows a passage in its document, with the cited characters marked: the text, or the page of a PDF.

import { button, byId, element, plural, slice } from "./dom.js";
import { get, getBlob, withParameters } from "./server.js";

const AROUND = [2, 20, 50]; // passages before and after, one step further with each click
const MARK = "rgba(255, 205, 0, .45)";
const dialog = byId("passage");
let latest; // what the dialog was opened for last; earlier requests that end later are ignored

// Opens the dialog. `cited` has the characters of the passage, passage_start to passage_end, or is undefined.
export async function openPassage(collection, passage, cited) {
  const opened = latest = {
    collection, id: passage.id, start: cited?.passage_start ?? 0, end: cited?.passage_end ?? 0, step: 0,
  };
  byId("passage-name").textContent = passage.source;
  byId("passage-place").textContent = cited?.location || passage.location || passage.title || "";
  byId("passage-views").hidden = true;
  byId("passage-body").replaceChildren(element("p", "caption", "Loading"));
  if (!dialog.open) dialog.showModal();
  try {
    const isText = showContext(opened, await load(opened, "context", { around: AROUND[0] }));
    if (isText && passage.source.toLowerCase().endsWith(".pdf")) await showPages(opened);
  } catch (error) {
    if (latest === opened) byId("passage-body").replaceChildren(element("p", "error", error.message));
  }
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
    if (latest === opened) byId("passage-body").append(element("p", "error", error.message));
  }
}

// Shows a view, scrolled so that what is marked is in the middle.
function show(view) {
  byId("passage-body").replaceChildren(view);
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
