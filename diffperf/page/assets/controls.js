// The controls: what runs where, the layout, and every number of hardware and model.

import { byId, h } from "./dom.js";

const LABELS = {
  model: "Model",
  system: "System",
  phase: "Phase",
  devices: "Devices",
  stack: "Software stack",
  calibration: "Calibration",
  tokens: "Tokens of a whole training",
};
const HINTS = {
  devices: "empty: as the system's file says",
  tokens: "such as 2e12",
  stack: "empty: the system's own",
  calibration: "empty: the system's own",
};

/** A labelled control with a line for its description and one for what is wrong with it. */
function field(key, label, control, hint, extra = null) {
  const id = `field-${key}`;
  control.id = id;
  control.dataset.key = key;
  if (hint) control.setAttribute("aria-describedby", `${id}-hint`);
  return h(
    "div",
    { class: "field", "data-field": key },
    h("label", { for: id }, label),
    control,
    extra,
    hint ? h("p", { class: "hint", id: `${id}-hint` }, hint) : null,
    h("p", { class: "wrong", id: `${id}-wrong`, hidden: true }),
  );
}

function select(options, value, change) {
  const control = h(
    "select",
    { onchange: (event) => change(event.target.value) },
    options.map(([text, label]) => h("option", { value: text }, label)),
  );
  if (!options.some(([text]) => text === value)) control.append(h("option", { value }, value));
  control.value = value;
  return control;
}

function input(value, placeholder, change) {
  return h("input", {
    type: "text",
    value: value || "",
    placeholder,
    spellcheck: "false",
    oninput: (event) => change(event.target.value.trim(), true),
    onchange: (event) => change(event.target.value.trim(), false),
  });
}

/** Model, system, phase and so on. `change(key, text)` is called with what a user gives. */
export function subject(catalog, state, change) {
  const names = (list, none) => [...(none ? [["", none]] : []), ...list.map((name) => [name, name])];
  const control = {
    model: () => select(names(catalog.models), state.texts.model, (text) => change("model", text)),
    system: () => select(names(catalog.systems), state.texts.system, (text) => change("system", text)),
    phase: () => select(names(catalog.phases), state.texts.phase, (text) => change("phase", text)),
    stack: () =>
      select(names(catalog.stacks, "as configured"), state.texts.stack || "", (text) =>
        change("stack", text),
      ),
    calibration: () =>
      select(
        names(["none", ...catalog.calibrations], "as configured"),
        state.texts.calibration || "",
        (text) => change("calibration", text),
      ),
    devices: () =>
      input(state.texts.devices, "as configured", (text, typing) => change("devices", text, typing)),
    tokens: () => input(state.texts.tokens, "none", (text, typing) => change("tokens", text, typing)),
  };
  const shown = ["model", "system", "phase", "devices", "stack", "calibration"];
  if (state.texts.phase === "training" || state.texts.tokens) shown.push("tokens");
  byId("subject").replaceChildren(
    h("legend", {}, "What runs where"),
    ...shown.map((key) => field(key, LABELS[key], control[key](), HINTS[key])),
  );
}

/** The fields of the layout; those of training are shown for training only. */
export function layout(catalog, state, change) {
  const training = state.texts.phase === "training";
  // What does not belong to the phase is shown where it is given, to be cleared.
  const belongs = (one) => (training ? one.name !== "output_length" : !one.training_only);
  const fields = catalog.strategy.filter((one) => belongs(one) || state.strategy[one.name]);
  const make = (one) => {
    const value = state.strategy[one.name] || "";
    const words = one.name.replaceAll("_", " ");
    const set = (text, typing) => change(one.name, text, typing);
    const empty = one.searched || (one.name === "global_batch" && training) ? "searched" : one.default;
    const control = one.alternatives
      ? select(
          [["", `${one.default} (default)`], ...one.alternatives.map((name) => [name, name])],
          value,
          set,
        )
      : input(value, empty, set);
    return field(`strategy.${one.name}`, words, control, one.bounds ? `${one.doc} (${one.bounds})` : one.doc);
  };
  byId("layout-first").replaceChildren(...fields.filter((one) => one.first).map(make));
  byId("layout-more").replaceChildren(...fields.filter((one) => !one.first).map(make));
}

/** Shows in the empty controls of the layout what the search chose. */
export function chosen(values) {
  for (const control of document.querySelectorAll('#layout input[data-key^="strategy."]')) {
    const value = values[control.dataset.key.replace("strategy.", "")];
    if (value !== undefined) control.placeholder = `${value} (searched)`;
  }
}

const PARTS = 3; // names of a path that make a group

function groupOf(path) {
  const names = path.split(".");
  return names.slice(0, Math.min(PARTS, names.length - 1)).join(".");
}

/** Every number, in groups by path; a group is filled when it is opened or searched. */
export function numbers(inputs, state, change) {
  const groups = new Map();
  for (const one of inputs) {
    const group = groupOf(one.path);
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(one);
  }
  const list = [...groups].map(([name, members]) => {
    const body = h("div");
    const details = h(
      "details",
      { "data-group": name },
      h("summary", {}, `${name.replace(/^system\./, "").replaceAll("_", " ")} (${members.length})`),
      body,
    );
    details.fill = (wanted) =>
      body.replaceChildren(...members.filter(wanted).map((one) => numberField(one, state, change)));
    details.members = members;
    details.addEventListener("toggle", () => {
      if (details.open && !body.childElementCount) details.fill(() => true);
    });
    return details;
  });
  byId("groups").replaceChildren(...list);
  search();
}

function numberField(one, state, change) {
  const own = state.settings[one.path];
  const name = one.path.split(".").slice(PARTS).join(" ").replaceAll("_", " ") || one.path.split(".").at(-1);
  const set = (text, typing) => change(one.path, text === one.text ? "" : text, typing);
  if (one.alternatives) {
    const control = select(
      one.alternatives.map((alternative) => [alternative, alternative]),
      own || one.text,
      set,
    );
    return field(one.path, name, control, one.doc);
  }
  const control = input(own || one.text, one.text, set);
  const box = field(one.path, name, control, `${one.doc} (${one.bounds})`, slider(one, name, control, set));
  box.classList.toggle("changed", Boolean(own));
  return box;
}

/** A slider from an eighth to eight times the configured value, and a button back to it. */
function slider(one, name, control, set) {
  const match = one.text
    .replace("$", "")
    .replaceAll(",", "")
    .match(/^([-+.\deE]+)\s*(.*)$/);
  if (!match || !(Number(match[1]) > 0)) return null;
  const unit = one.text.startsWith("$") ? "USD" : match[2];
  const range = h("input", {
    type: "range",
    min: -3,
    max: 3,
    step: 0.05,
    value: 0,
    tabindex: 0,
    "aria-label": `${name}, times the configured value`,
    "data-slider": one.path,
  });
  const show = () => {
    const factor = 2 ** Number(range.value);
    range.setAttribute("aria-valuetext", `${factor.toPrecision(3)} times ${one.text}`);
    return factor;
  };
  range.addEventListener("input", () => {
    const factor = show();
    let value = Number(match[1]) * factor;
    value = one.integer ? Math.max(1, Math.round(value)) : Number(value.toPrecision(4));
    control.value = factor === 1 ? one.text : `${value} ${unit}`.trim();
    set(control.value, false);
  });
  show();
  const reset = h(
    "button",
    {
      type: "button",
      "aria-label": `${name}: as configured`,
      onclick: () => {
        range.value = 0;
        show();
        control.value = one.text;
        set(one.text, false);
      },
    },
    "reset",
  );
  return h("div", { class: "slide" }, range, reset);
}

/** Opens what the search finds. */
export function search() {
  const words = byId("search")
    .value.toLowerCase()
    .split(/[\s.]+/)
    .filter(Boolean);
  const found = (one) => {
    const text = `${one.path.replaceAll("_", " ")} ${one.path} ${one.doc}`.toLowerCase();
    return words.every((word) => text.includes(word));
  };
  let count = 0;
  for (const details of byId("groups").children) {
    const matching = words.length ? details.members.filter(found) : details.members;
    count += matching.length;
    details.hidden = !matching.length;
    if (words.length) {
      details.fill(found);
      details.open = matching.length > 0 && count <= 60;
    } else if (details.dataset.searched) {
      details.fill(() => true);
      details.open = false;
    }
    details.dataset.searched = words.length ? "yes" : "";
  }
  byId("search-count").textContent = words.length ? `${count} found` : `${count} numbers and choices`;
}

/** The overridden inputs, each with a button that drops it. */
export function overridden(state, drop) {
  const buttons = Object.entries(state.settings).map(([path, text]) =>
    h(
      "button",
      { type: "button", onclick: () => drop(path), "aria-label": `${path} = ${text}: as configured` },
      `${path.replace(/^system\.(accelerator\.)?/, "")} = ${text} ✕`,
    ),
  );
  byId("overridden").replaceChildren(
    ...(buttons.length ? ["Changed: ", ...buttons.flatMap((one) => [one, " "])] : []),
  );
  for (const box of document.querySelectorAll("#groups .field")) {
    box.classList.toggle("changed", box.dataset.field in state.settings);
  }
}

/** Shows what is wrong beside its control, or at the top where there is none; null clears it. */
export function explain(error) {
  for (const one of document.querySelectorAll("[aria-invalid]")) {
    one.removeAttribute("aria-invalid");
    one.removeAttribute("aria-errormessage");
  }
  for (const one of document.querySelectorAll(".wrong")) one.hidden = true;
  const problem = byId("problem");
  problem.hidden = !error;
  if (!error) return;
  problem.textContent = error.key ? `${error.key}: ${error.line}` : error.line;
  const keys = [
    error.key,
    `system.${error.key}`,
    `strategy.${error.key}`,
    error.key.replace(/^system\./, ""),
    error.key === "n_devices" ? "devices" : error.key,
  ];
  const boxes = [...document.querySelectorAll("[data-field]")];
  const box = boxes.find((one) => keys.includes(one.dataset.field));
  if (!box) return;
  const control = box.querySelector("input, select");
  const line = box.querySelector(".wrong");
  line.textContent = error.line;
  line.hidden = false;
  control.setAttribute("aria-invalid", "true");
  control.setAttribute("aria-errormessage", line.id);
}
