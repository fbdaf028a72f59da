// The desk: sends the text when the form is submitted, and shows the translation while it is written.
import { translate } from "./server.js";
import { readRecent, readSettings, saveRecent, saveSettings } from "./store.js";

const text = document.getElementById("text");
const language = document.getElementById("language");
const tone = document.getElementById("tone");
const key = document.getElementById("key");
const stop = document.getElementById("stop");
const error = document.getElementById("error");
const translation = document.getElementById("translation");
const list = document.getElementById("recent");

let recent = readRecent();
let running = null;

// Only the last submission may change the page: each has a controller of its own, and `running` is that of the last.
async function submit() {
  running?.abort();
  const mine = new AbortController();
  running = mine;
  const wanted = { text: text.value, language: language.value, tone: tone.value };
  let written = "";
  saveSettings({ language: wanted.language, tone: wanted.tone });
  error.textContent = "";
  translation.textContent = "";
  stop.disabled = false;
  try {
    for await (const piece of translate(wanted, key.value, mine.signal)) {
      if (running !== mine) return;
      written += piece;
      translation.textContent = written;
    }
    if (running !== mine) return;
    remember({ text: wanted.text, language: wanted.language, translation: written });
  } catch (reason) {
    if (running !== mine) return;
    error.textContent = reason.message;
  }
  running = null;
  stop.disabled = true;
}

// What was written stays. The request that was given up is no error.
function giveUp() {
  running?.abort();
  running = null;
  stop.disabled = true;
}

function remember(item) {
  recent = [item, ...recent].slice(0, 10);
  saveRecent(recent);
  showRecent();
}

// What users and models wrote becomes text, never HTML.
function showRecent() {
  list.replaceChildren(
    ...recent.map((item) => {
      const entry = document.createElement("li");
      const again = document.createElement("button");
      again.type = "button";
      again.textContent = item.language + ": " + item.text.slice(0, 60);
      again.addEventListener("click", () => {
        giveUp();
        text.value = item.text;
        language.value = item.language;
        translation.textContent = item.translation;
        error.textContent = "";
      });
      entry.append(again);
      return entry;
    }),
  );
}

const languages = Array.from(language.options ?? [], (option) => option.value);
const settings = readSettings(languages);
if (settings.language) language.value = settings.language;
tone.value = settings.tone;
showRecent();
stop.addEventListener("click", giveUp);
document.getElementById("desk").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
