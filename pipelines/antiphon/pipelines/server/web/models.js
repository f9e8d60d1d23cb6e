// What answers: a collection of documents, or the language model alone.

import { byId } from "./dom.js";
import { get } from "./server.js";

const select = byId("model");
let models = [];

// Lists what the API key may use, collections first; a choice that still exists is kept.
export async function listModels() {
  const before = select.value;
  const { data } = await get("/v1/models");
  models = data.sort((one, other) => Boolean(other.collection) - Boolean(one.collection));
  const languageModels = new Set(models.map(({ id, collection }) => (collection ? id.slice(0, -collection.length - 1) : id)));
  const name = ({ id, collection }) => (languageModels.size > 1 ? id : collection ?? "No documents");
  select.replaceChildren(...models.map((model) => new Option(name(model), model.id)));
  chooseModel(before);
}

// Chooses a model; returns whether it exists.
export function chooseModel(id) {
  const exists = models.some((model) => model.id === id);
  if (exists) select.value = id;
  return exists;
}

// A model and its collection, as they are shown.
export const shownName = ({ model, collection }) =>
  (collection ? `${model.slice(0, -collection.length - 1)} · ${collection}` : model);

export const currentModel = () => models.find(({ id }) => id === select.value) ?? {};

// Whether a model only quotes, so that there is no decoding to vary or compare.
export const isExtractive = (name) => models.some(({ id, extractive }) => id === name && extractive);

export const onModelChange = (action) => select.addEventListener("change", action);
