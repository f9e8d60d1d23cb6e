// Asking the server: the key, JSON, and streams of events. Knows nothing of the page.

const KEY = "antiphon-key";

export const useKey = (key) => sessionStorage.setItem(KEY, key);

export function headers(more = {}) {
  const key = sessionStorage.getItem(KEY);
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

export async function get(path) {
  return (await checked(await fetch(path, { headers: headers() }))).json();
}

export async function remove(path) {
  return (await checked(await fetch(path, { method: "DELETE", headers: headers() }))).json();
}

// Every event of an answer, as it comes; an event that is an error is thrown.
export async function* ask(body, signal) {
  const response = await checked(await fetch("/v1/chat/completions", {
    method: "POST", signal, headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body),
  }));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (left + value).split("\n");
    left = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
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
    request.onerror = () => reject(new Refused(0, "The connection broke."));
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
