// Asking the server: the key, JSON, and streams of events. Knows nothing of the page.

import { kept, keep } from "./kept.js";

const BROKEN = "The connection broke.";
const KEY = "antiphon-key";

export const useKey = (key) => keep("sessionStorage", KEY, key);

export function headers(more = {}) {
  const key = kept("sessionStorage", KEY);
  return key ? { ...more, Authorization: `Bearer ${key}` } : more;
}

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function checked(response) {
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new Refused(response.status, body.error?.message ?? `The server answered ${response.status}.`);
}

// What a browser says of a broken connection differs from one to the next, and means nothing to people.
async function connected(act, broken = "The server cannot be reached.") {
  try {
    return await act();
  } catch (error) {
    throw error instanceof TypeError ? new Refused(0, broken) : error;
  }
}

const sent = async (path, options) => checked(await connected(() => fetch(path, options)));

export async function get(path) {
  return (await sent(path, { headers: headers() })).json();
}

export async function remove(path) {
  return (await sent(path, { method: "DELETE", headers: headers() })).json();
}

// Every event of an answer, as it comes; an event that is an error is thrown.
export async function* ask(body, signal) {
  const response = await sent("/v1/chat/completions", {
    method: "POST", signal, headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body),
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  for (;;) {
    const { value, done } = await connected(() => reader.read(), BROKEN);
    if (done) throw new Refused(0, BROKEN);
    const lines = (left + value).split("\n");
    left = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") return;
      if (!line.startsWith("data: ")) continue;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new Refused(500, event.error.message);
      yield event;
    }
  }
}

// Sends a file; `told` hears the share of it that has gone.
export function upload(file, told) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", "/documents");
    for (const [name, value] of Object.entries(headers())) request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => told(event.loaded / event.total);
    request.onerror = () => reject(new Refused(0, BROKEN));
    request.onload = () => {
      let body = {};
      try { body = JSON.parse(request.responseText); } catch { /* said below */ }
      if (request.status < 300) resolve(body);
      else reject(new Refused(request.status, body.error?.message ?? `The server answered ${request.status}.`));
    };
    const form = new FormData();
    form.append("file", file);
    request.send(form);
  });
}
