// Requests to the server: API key, JSON, and streams of events.

import { load, store } from "./storage.js";

const BROKEN = "The connection broke.";
const KEY = "antiphon-key";

export const useKey = (key) => store("sessionStorage", KEY, key);

export function headers(extra = {}) {
  const key = load("sessionStorage", KEY);
  return key ? { ...extra, Authorization: `Bearer ${key}` } : extra;
}

export class RequestError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function checkStatus(response) {
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new RequestError(response.status, body.error?.message ?? `The server answered ${response.status}.`);
}

// Replaces the message of a broken connection, which differs between browsers and does not help the user.
async function withConnection(action, broken = "The server cannot be reached.") {
  try {
    return await action();
  } catch (error) {
    throw error instanceof TypeError ? new RequestError(0, broken) : error;
  }
}

// The server may be below a path of a proxy, so addresses are relative to this file in /static.
const addressOf = (path) => new URL(`..${path}`, import.meta.url);

const send = async (path, options) => checkStatus(await withConnection(() => fetch(addressOf(path), options)));

// Adds the collection, if there is one, and other parameters to a path.
export function withParameters(path, parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null);
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

export async function get(path) {
  return (await send(path, { headers: headers() })).json();
}

export async function getBlob(path) {
  return (await send(path, { headers: headers() })).blob();
}

export async function remove(path) {
  return (await send(path, { method: "DELETE", headers: headers() })).json();
}

// Yields the events of an answer as they come; an error event is thrown.
export async function* ask(body, signal) {
  const response = await send("/v1/chat/completions", {
    method: "POST", signal, headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body),
  });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  for (;;) {
    const { value, done } = await withConnection(() => reader.read(), BROKEN);
    if (done) throw new RequestError(0, BROKEN);
    const lines = (left + value).split("\n");
    left = lines.pop();
    for (const line of lines) {
      if (line === "data: [DONE]") return;
      if (!line.startsWith("data: ")) continue;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new RequestError(500, event.error.message);
      yield event;
    }
  }
}

// Uploads a file under a name; `onProgress` is called with the share that is sent, 0 to 1.
export function upload(file, name, collection, onProgress) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", addressOf(withParameters("/documents", { collection })));
    for (const [name, value] of Object.entries(headers())) request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => onProgress(event.loaded / event.total);
    request.onerror = () => reject(new RequestError(0, BROKEN));
    request.onload = () => {
      let body = {};
      try { body = JSON.parse(request.responseText); } catch { /* handled below */ }
      if (request.status < 300) resolve(body);
      else reject(new RequestError(request.status, body.error?.message ?? `The server answered ${request.status}.`));
    };
    const form = new FormData();
    form.append("file", file, name);
    request.send(form);
  });
}
