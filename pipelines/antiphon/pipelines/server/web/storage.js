// Values in the browser's storage; if the browser refuses to store them, they are kept until the page is closed.

const fallback = new Map();

// Returns whether the browser has stored the text.
export function store(storage, name, text) {
  fallback.set(name, text);
  try {
    window[storage].setItem(name, text);
    return true;
  } catch {
    return false;
  }
}

export function load(storage, name) {
  try { return window[storage].getItem(name) ?? fallback.get(name) ?? null; } catch { return fallback.get(name) ?? null; }
}
