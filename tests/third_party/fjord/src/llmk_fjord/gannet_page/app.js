// What the user types, token by token. The text is sent when typing rests; an answer to an older text is dropped.
import { explained, tokenize } from "./client.js";
import { element, labelled } from "./view.js";

const REST_MS = 200;
const KEY = "gannet.tokens.key";
const form = document.getElementById("form");
const text = document.getElementById("text");
const special = document.getElementById("special");
const key = document.getElementById("key");
const count = document.getElementById("count");
const error = document.getElementById("error");
const tokens = document.getElementById("tokens");
let timer = 0;
let running = null;

async function update() {
  running?.abort();
  const mine = new AbortController();
  running = mine;
  if (!text.value) {
    show([], "", "");
    return;
  }
  try {
    const answer = await tokenize(text.value, special.checked, key.value, mine.signal);
    if (running !== mine) return;
    const room = `${answer.count} of ${answer.max_model_len} tokens`;
    const texts = answer.token_strs ?? [];
    show(answer.tokens.map((id, at) => [id, texts[at] ?? ""]), room, "");
  } catch (reason) {
    if (running === mine) show([], "", explained(reason));
  }
}

function show(pairs, room, why) {
  tokens.replaceChildren(...pairs.map(([id, token]) => element("li", labelled(token), `token ${id}`)));
  count.textContent = room;
  error.textContent = why;
  error.hidden = !why;
}

function later() {
  clearTimeout(timer);
  timer = setTimeout(update, REST_MS);
}

// Where the browser keeps nothing, the key is typed again.
function kept(act) {
  try {
    return act() ?? "";
  } catch {
    return "";
  }
}

key.value = kept(() => sessionStorage.getItem(KEY));
key.addEventListener("change", () => kept(() => sessionStorage.setItem(KEY, key.value)));
form.addEventListener("input", later);
form.addEventListener("submit", (event) => {
  event.preventDefault();
  later();
});
