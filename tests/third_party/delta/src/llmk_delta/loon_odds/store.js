// What the browser keeps between visits: texts by their names. What is stored may be damaged, and storing may fail.

const NAME = "loon.odds";

/** The texts that were stored. */
export function restored() {
  let found = null;
  try {
    found = JSON.parse(localStorage.getItem(NAME));
  } catch {
    return {};
  }
  if (found === null || typeof found !== "object") return {};
  return Object.fromEntries(Object.entries(found).filter(([, value]) => typeof value === "string"));
}

/** Stores texts in place of those before. */
export function stored(texts) {
  try {
    localStorage.setItem(NAME, JSON.stringify(texts));
  } catch {
    // The page works without.
  }
}
