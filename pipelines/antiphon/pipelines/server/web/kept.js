// What the browser keeps for the page; where it keeps nothing for anybody, the page does until it is left.

const here = new Map();

export function keep(place, name, text) {
  here.set(name, text);
  try { window[place].setItem(name, text); } catch { /* kept here alone */ }
}

export function kept(place, name) {
  try { return window[place].getItem(name) ?? here.get(name) ?? null; } catch { return here.get(name) ?? null; }
}
