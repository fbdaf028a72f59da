// What the browser keeps: the settings, and the last translations of this tab. Either may be damaged, or not allowed.

const SETTINGS = "stork.desk.settings";
const RECENT = "stork.desk.recent";

/** The language, if it is one of `languages`, and the tone. */
export function readSettings(languages) {
  const stored = Object(read(() => localStorage, SETTINGS));
  return {
    language: languages.includes(stored.language) ? stored.language : "",
    tone: typeof stored.tone === "string" ? stored.tone : "",
  };
}

export function saveSettings(settings) {
  save(() => localStorage, SETTINGS, settings);
}

/** The last translations, of which each has three texts. */
export function readRecent() {
  const stored = read(() => sessionStorage, RECENT);
  return Array.isArray(stored) ? stored.filter(isWhole) : [];
}

export function saveRecent(recent) {
  save(() => sessionStorage, RECENT, recent);
}

function isWhole(item) {
  return ["text", "language", "translation"].every((name) => typeof item?.[name] === "string");
}

function read(storage, name) {
  try {
    return JSON.parse(storage().getItem(name));
  } catch {
    return null;
  }
}

function save(storage, name, value) {
  try {
    storage().setItem(name, JSON.stringify(value));
  } catch {
    // Where nothing can be kept, the page works without.
  }
}
