// The page: reads the state from the address, asks the server, and draws what it answers.

import * as cards from "./cards.js";
import * as controls from "./controls.js";
import { byId, card, h } from "./dom.js";
import { showExports } from "./exports.js";
import { copy, fromAddress, query, toAddress } from "./state.js";
import { theme } from "./theme.js";

const TYPING = 150; // ms without a key before a text is read
const IDLE = 400; // ms after a change before the page asks how sure the time is
const POLL = 1000; // ms between two questions while something compiles

const page = {
  catalog: null,
  a: null,
  b: null,
  answers: { a: null, b: null },
  front: null,
  fronts: false,
  asked: 0,
};
let timer = 0;
let poll = 0;

/** Asks the server. Returns its answer; `{error}` for what cannot be used or reached. */
async function ask(path, state) {
  try {
    const reply = await fetch(`/api/${path}?${state ? query(state) : ""}`);
    return await reply.json();
  } catch {
    return { error: { key: "", line: "the server does not answer: is diffperf explore still running?" } };
  }
}

function status(text) {
  if (byId("status").textContent !== text) byId("status").textContent = text;
}

async function start() {
  theme();
  status("starting: the estimator is being loaded …");
  page.catalog = await ask("catalog");
  if (page.catalog.error) {
    status("");
    controls.explain(page.catalog.error);
    return;
  }
  ({ a: page.a, b: page.b } = fromAddress(page.catalog.defaults));
  build();
  await numbers();
  update();
}

/** Draws the controls anew, after a change of what they offer. */
function build() {
  controls.subject(page.catalog, page.a, changeText);
  controls.layout(page.catalog, page.a, changeLayout);
  byId("unpin").hidden = byId("swap").hidden = !page.b;
}

/** Reads the numbers of the model and the system. */
async function numbers() {
  const bare = copy(page.a);
  bare.settings = {};
  const found = await ask("inputs", bare);
  if (found.error) return;
  whole(found.inputs.map((one) => one.path));
  controls.numbers(found.inputs, page.a, changeNumber);
}

/** Writes overridden inputs by their whole paths, so that each has one control. */
function whole(paths) {
  const settings = {};
  for (const [path, text] of Object.entries(page.a.settings)) {
    const ending = paths.filter((one) => one.endsWith(`.${path}`));
    settings[!paths.includes(path) && ending.length === 1 ? ending[0] : path] = text;
  }
  page.a.settings = settings;
}

function changeText(key, text, typing = false) {
  page.a.texts[key] = text;
  const rebuilt = ["model", "system", "phase", "stack", "calibration", "devices"].includes(key);
  later(typing, async () => {
    if (key === "phase") {
      const training = new Set(
        page.catalog.strategy.filter((one) => one.training_only).map((one) => one.name),
      );
      if (text !== "training") {
        for (const name of training) delete page.a.strategy[name];
        delete page.a.texts.tokens;
      }
      build();
    }
    if (rebuilt && key !== "phase") numbers();
    update();
  });
}

function changeLayout(name, text, typing = false) {
  page.a.strategy[name] = text;
  later(typing, update);
}

function changeNumber(path, text, typing = false) {
  if (text) page.a.settings[path] = text;
  else delete page.a.settings[path];
  controls.overridden(page.a, dropNumber);
  later(typing, update);
}

function dropNumber(path) {
  delete page.a.settings[path];
  numbers();
  update();
}

/** Does something at once, or after the last key of a text. */
function later(typing, work) {
  clearTimeout(timer);
  if (typing) timer = setTimeout(work, TYPING);
  else work();
}

/** Asks about the state, and draws the answer unless a newer question was asked. */
async function update() {
  clearTimeout(poll);
  const asked = ++page.asked;
  toAddress(page.a, page.b);
  controls.overridden(page.a, dropNumber);
  const begun = performance.now();
  byId("results").classList.add("waiting");
  const [a, b] = await Promise.all([ask("answer", page.a), page.b ? ask("answer", page.b) : null]);
  if (asked !== page.asked) return;
  byId("results").classList.remove("waiting");
  controls.explain(a.error ?? (b?.error ? { key: "", line: `B: ${b.error.line}` } : null));
  if (a.error) {
    status(`This state cannot be estimated${page.answers.a ? "; the figures are those before." : "."}`);
    byId("results").classList.add("waiting");
    return;
  }
  page.answers = { a, b: b && !b.error ? b : null };
  draw();
  const compiling = [...new Set([...a.compiling, ...(b?.compiling ?? [])])];
  if (compiling.length) {
    status(`compiling ${compiling.join(", ")} …`);
    poll = setTimeout(update, POLL);
    return;
  }
  const took = performance.now() - begun;
  document.body.dataset.redraw = took.toFixed(0);
  poll = setTimeout(refine, IDLE);
  status(`${a.outputs.time.doc} ${a.outputs.time.text}, ${a.fits ? "fits memory" : "does not fit memory"}`);
}

/** Asks for what takes longer than a redraw, unless more is asked: layouts, and how sure the time is. */
async function refine() {
  const asked = page.asked;
  const [found, front] = await Promise.all([
    ask("interval", page.a),
    page.fronts ? ask("front", page.a) : null,
  ]);
  if (asked !== page.asked) return;
  if (found.interval) page.answers.a.interval = found.interval;
  if (front) page.front = front.points || !page.front?.points ? front : page.front;
  draw();
  if (found.compiling?.length || front?.compiling?.length) poll = setTimeout(refine, POLL);
}

/** Draws all cards of the answers; open details and the focus stay. */
function draw() {
  const { a, b } = page.answers;
  if (!a?.outputs) return;
  const full = b?.outputs ? b : null;
  controls.chosen(a.chosen);
  byId("headline").replaceChildren(...cards.headline(a, full));
  const [times, others] = cards.wholes(a, full);
  for (const [id, title, body] of times) card(id, title, () => body);
  card("memory", "Memory of a device", () => cards.memory(a, full));
  for (const [id, title, body] of others) card(id, title, () => body);
  for (const old of document.querySelectorAll('section[id^="card-whole-"]')) {
    if (!a.wholes.some(({ path }) => old.id === `card-whole-${path}`)) old.remove();
  }
  card("training", "The whole training", a.training ? () => cards.training(a) : null);
  card(
    "roofline",
    "Roofline of the operators",
    (host) => (a.operators ? cards.roofline(host, a) : compiling()),
    "wide",
  );
  card("tornado", "What matters: exact elasticities", () =>
    a.sensitivities ? cards.tornado(a, pick, draw) : compiling(),
  );
  card("dollars", "What one more dollar would buy", () =>
    a.sensitivities ? cards.dollars(a, pick) : compiling(),
  );
  card("front", "Layouts: time against memory", (host) => layouts(host, a), "wide");
  card("figures", "Every figure", () => cards.figures(a, full), "wide");
}

function compiling() {
  return [
    h(
      "p",
      { class: "hint" },
      "compiling: this takes a while once for each kind of model, system and phase …",
    ),
  ];
}

/** The button that compares layouts, or the chart once it was pressed. */
function layouts(host, a) {
  if (page.front?.points) return cards.front(host, page.front, a, use);
  const busy = page.fronts && !page.front?.error;
  return [
    h("p", { class: "hint" }, "All layouts of the devices, with the batch and the other fields given here."),
    h(
      "button",
      {
        type: "button",
        id: "compare",
        disabled: Boolean(busy),
        onclick: () => {
          page.fronts = true;
          draw();
          clearTimeout(poll);
          refine();
        },
      },
      busy ? "comparing …" : "Compare all layouts",
    ),
  ];
}

/** Shows the control of a number. */
function pick(path) {
  const found = byId("search");
  found.value = path.replace(/^system\./, "");
  controls.search();
  const control = document.querySelector(`[data-key="${CSS.escape(path)}"]`);
  control?.focus();
  control?.scrollIntoView({ block: "center" });
}

/** Takes a layout. */
function use(fields) {
  const searched = [
    "tp",
    "pp",
    "dp",
    "cp",
    "ep",
    "expert_tp",
    "embedding_in_split",
    "loss_in_split",
    "virtual_stages",
    "micro_batch",
    "recompute",
    "zero",
    "schedule",
  ];
  for (const name of searched) delete page.a.strategy[name];
  Object.assign(page.a.strategy, fields);
  build();
  update();
}

byId("controls").addEventListener("submit", (event) => event.preventDefault());
byId("search").addEventListener("input", controls.search);
byId("export").addEventListener("click", async () => showExports(await ask("export", page.a)));
byId("pin").addEventListener("click", () => {
  page.b = copy(page.a);
  build();
  update();
});
byId("unpin").addEventListener("click", () => {
  page.b = null;
  build();
  update();
});
byId("swap").addEventListener("click", async () => {
  [page.a, page.b] = [page.b, page.a];
  build();
  await numbers();
  update();
});
let resized = 0;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(draw, 100);
});
start();
