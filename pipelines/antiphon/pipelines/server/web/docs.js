// The list of endpoints, read from the server's OpenAPI schema.

import { element } from "./dom.js";

const { paths } = await (await fetch(new URL("../openapi.json", import.meta.url))).json();
for (const [path, methods] of Object.entries(paths)) {
  for (const [method, operation] of Object.entries(methods)) {
    const section = element("section");
    section.append(element("h2", "", `${method.toUpperCase()} ${path}`), element("p", "", operation.description ?? operation.summary));
    document.getElementById("endpoints").append(section);
  }
}
