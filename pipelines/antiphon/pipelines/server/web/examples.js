// Questions that fit the documents of the chosen collection, at the start of a conversation.

import { button, byId, element } from "./dom.js";
import { currentModel } from "./models.js";
import { get, withParameters } from "./server.js";

export async function showExamples(ask) {
  const { collection } = currentModel();
  byId("examples").hidden = true;
  if (!collection) return;
  const { data } = await get(withParameters("/documents/questions", { collection }));
  if (currentModel().collection !== collection) return; // another one was chosen meanwhile
  byId("examples").hidden = !data.length;
  byId("examples").replaceChildren(...data.map((question) => {
    const item = element("li");
    item.append(button(question, () => ask(question), "example"));
    return item;
  }));
}
