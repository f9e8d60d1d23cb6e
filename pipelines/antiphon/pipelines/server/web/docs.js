// The addresses of the server, read from its own description.

import { element } from "./answer.js";

const { paths } = await (await fetch("/openapi.json")).json();
for (const [path, methods] of Object.entries(paths)) {
  for (const [method, told] of Object.entries(methods)) {
    const section = element("section");
    section.append(element("h2", "", `${method.toUpperCase()} ${path}`), element("p", "", told.description ?? told.summary));
    document.getElementById("addresses").append(section);
  }
}
