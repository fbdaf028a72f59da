// Counts the tokens of what the user types. The browser runs no script but files like this one.
import { countTokens } from "./server.js";

const REST_MS = 200;
const text = document.getElementById("text");
const key = document.getElementById("key");
const count = document.getElementById("count");
const error = document.getElementById("error");
let timer = 0;
let asked = 0;

// An answer to an older text may come after that to a newer one; only the last request's is shown.
async function update() {
  asked += 1;
  const mine = asked;
  let said = "";
  let failed = "";
  try {
    if (text.value) said = (await countTokens(text.value, key.value)) + " tokens";
  } catch (reason) {
    failed = reason.message;
  }
  if (mine !== asked) return;
  // What a server says becomes text. The browser refuses HTML that is made of strings.
  count.textContent = said;
  error.textContent = failed;
}

// Waits until the user rests, so that not each letter is a request.
function later() {
  clearTimeout(timer);
  timer = setTimeout(update, REST_MS);
}

text.addEventListener("input", later);
key.addEventListener("input", later);
