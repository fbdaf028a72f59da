// Starts the page: views, theme, API key, and the model's name.

import { byId, h, icon, store, stored } from "./dom.js";
import { Chat } from "./chat.js";
import { Live } from "./live.js";
import { PlanView } from "./plan.js";
import { getJson, onKeyNeeded, setKey } from "./server.js";

const THEMES = { auto: "Auto", light: "Light", dark: "Dark" };
const RETRY_MS = 3000;

function startTheme() {
  const button = byId("theme");
  const show = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.replaceChildren(icon(theme), h("span", {}, THEMES[theme]));
    button.setAttribute("aria-label", `Theme: ${THEMES[theme]}`);
  };
  let theme = stored("localStorage", "theme", "auto");
  if (!(theme in THEMES)) theme = "auto";
  show(theme);
  button.addEventListener("click", () => {
    const names = Object.keys(THEMES);
    theme = names[(names.indexOf(theme) + 1) % names.length];
    store("localStorage", "theme", theme);
    show(theme);
  });
}

/** Asks for a key in a dialog. Requests that need one at the same time wait for the same answer. */
function startKeys() {
  const dialog = byId("key-dialog");
  let asked = null;
  byId("key-cancel").addEventListener("click", () => dialog.close(""));
  onKeyNeeded((wrong) => {
    asked ??= new Promise((resolve) => {
      byId("key-text").textContent = wrong
        ? "The server did not accept that key. Try another."
        : "The key stays in this tab, and is forgotten when you close it.";
      byId("key").value = "";
      dialog.returnValue = "";
      dialog.showModal();
      byId("key").focus();
      dialog.addEventListener("close", () => {
        const given = dialog.returnValue === "use" ? byId("key").value.trim() : "";
        if (given) setKey(given);
        asked = null;
        resolve(given || null);
      }, { once: true });
    });
    return asked;
  });
}

function startViews(views) {
  let current = null;
  const show = () => {
    const name = location.hash.slice(1) in views ? location.hash.slice(1) : "chat";
    if (name === current) return;
    if (current) views[current].hide?.();
    current = name;
    for (const each of Object.keys(views)) byId(each).hidden = each !== name;
    for (const link of document.querySelectorAll("nav a")) {
      if (link.dataset.view === name) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    views[name].show?.();
  };
  addEventListener("hashchange", show);
  show();
}

/** Shows the model and whether the server is well, now and every few seconds. */
async function watch(chat, live) {
  let known = false;
  for (;;) {
    let state = "well";
    try {
      if (!known) {
        const models = (await getJson("v1/models")).data;
        byId("model-name").textContent = models[0].id;
        byId("model").title = `up to ${models[0].max_model_len.toLocaleString()} tokens`;
        document.title = `${models[0].id} · llmk`;
        chat.setModels(models);
        live.start();
        known = true;
      } else if (document.visibilityState === "visible") await getJson("health");
    } catch (error) {
      state = "down";
      if (!known) byId("model-name").textContent = error.status === 401 ? "no API key" : "no answer";
      if (error.status === 401) return;
    }
    byId("dot").dataset.state = state;
    byId("dot").title = state === "well" ? "the server answers" : "the server does not answer";
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

startTheme();
startKeys();
const chat = new Chat();
const live = new Live();
startViews({ chat, live, plan: new PlanView() });
watch(chat, live);
