// Continues a text, and shows the probability of each token. The browser runs no script but files like this one.
import { continued, modelNames } from "./server.js";
import { restored, stored } from "./store.js";
import { described, shadeOf } from "./odds.js";

const REST_MS = 300;
const element = (id) => document.getElementById(id);
const fields = { prompt: element("prompt"), most: element("most"), temperature: element("temperature") };
const [form, model, key, stop] = ["form", "model", "key", "stop"].map(element);
const [answer, summary, error] = ["answer", "summary", "error"].map(element);
let timer = 0;
let listed = 0;
let asked = 0;
let running = null;

// The names of models, again where the key changes. The answer to an older key is not shown.
async function listModels() {
  listed += 1;
  const mine = listed;
  try {
    const names = await modelNames(key.value);
    if (mine !== listed) return;
    const chosen = model.value;
    model.textContent = "";
    for (const name of names) {
      const option = document.createElement("option");
      option.value = name;
      option.textContent = name;
      model.append(option);
    }
    if (names.includes(chosen)) model.value = chosen;
    error.textContent = "";
  } catch (reason) {
    if (mine === listed) error.textContent = reason.message;
  }
}

function show(token) {
  const span = document.createElement("span");
  span.textContent = token.text;
  span.className = shadeOf(token.logprob);
  span.title = described(token);
  answer.append(span);
}

// The body of a request. A field that is left empty is not sent, so that the model's default holds.
function request() {
  const body = { prompt: fields.prompt.value };
  if (model.value) body.model = model.value;
  if (fields.most.value) body.max_tokens = Number(fields.most.value);
  if (fields.temperature.value) body.temperature = Number(fields.temperature.value);
  return body;
}

function end() {
  if (running) running.abort();
  running = null;
  stop.disabled = true;
}

async function run() {
  end();
  asked += 1;
  const mine = asked;
  running = new AbortController();
  stop.disabled = false;
  for (const part of [answer, summary, error]) part.textContent = "";
  stored({ prompt: fields.prompt.value, most: fields.most.value, temperature: fields.temperature.value });
  let count = 0;
  let sum = 0;
  try {
    await continued(request(), key.value, running.signal, (token) => {
      if (mine !== asked) return;
      show(token);
      count += 1;
      sum += token.logprob ?? 0;
    });
    if (mine === asked) summary.textContent = `${count} tokens, perplexity ${Math.exp(-sum / (count || 1)).toFixed(2)}`;
  } catch (reason) {
    if (mine === asked) error.textContent = reason.message;
  }
  if (mine === asked) end();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
stop.addEventListener("click", () => {
  asked += 1;
  end();
  summary.textContent = "stopped";
});
key.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(listModels, REST_MS);
});

for (const [name, value] of Object.entries(restored())) if (name in fields) fields[name].value = value;
listModels();
