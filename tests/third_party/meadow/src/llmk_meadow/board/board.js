import { points, sums } from "./metrics.js";

const SHOWN = { running: "llmk_num_requests_running", waiting: "llmk_num_requests_waiting" };
const LONGEST = 120;
const history = { running: [], waiting: [] };
const SVG = "http://www.w3.org/2000/svg";

function element(id) {
  return document.getElementById(id);
}

function headers() {
  const key = element("key").value;
  return key ? { Authorization: `Bearer ${key}` } : {};
}

function show(numbers) {
  const rows = [];
  for (const [name, metric] of Object.entries(SHOWN)) {
    const value = numbers.get(metric) ?? 0;
    history[name].push(value);
    history[name].splice(0, Math.max(history[name].length - LONGEST, 0));
    const row = document.createElement("tr");
    for (const text of [name, String(value)]) {
      const cell = document.createElement("td");
      cell.textContent = text;
      row.append(cell);
    }
    rows.push(row);
  }
  element("numbers").replaceChildren(...rows);
}

function draw() {
  const most = Math.max(...history.running, ...history.waiting);
  const lines = Object.entries(history).map(([name, values]) => {
    const line = document.createElementNS(SVG, "polyline");
    line.setAttribute("class", name);
    line.setAttribute("points", points(values, 300, 100, most));
    return line;
  });
  element("curve").replaceChildren(...lines);
}

async function refresh() {
  try {
    const response = await fetch("metrics", { headers: headers() });
    if (!response.ok) {
      throw new Error(`${response.status} ${response.statusText}`);
    }
    show(sums(await response.text()));
    draw();
    element("state").textContent = `As of ${new Date().toLocaleTimeString()}.`;
  } catch (error) {
    element("state").textContent = `No numbers: ${error.message}`;
  }
  setTimeout(refresh, 2000);
}

element("login").addEventListener("submit", (event) => event.preventDefault());
refresh();
