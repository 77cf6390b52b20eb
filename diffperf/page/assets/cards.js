// The results: a card for each question, with charts and the tables behind them.

import * as bars from "./bars.js";
import * as charts from "./charts.js";
import { breakable, h, short, table } from "./dom.js";

const TITLES = {
  breakdown: "Where the time goes",
  prefill: "Where the time of the prefill goes",
  decode: "Where the time of a decode pass goes",
  energy: "Energy",
  "cost.accelerator": "Cost of making one accelerator",
  "cost.purchase": "Purchase price of the system",
};
const HEADLINES = [
  "time",
  "time_to_first_token",
  "time_per_output_token",
  "tokens_per_second",
  "mfu",
  "power",
  "energy.total",
  "cost.run",
  "cost_per_million_tokens",
  "tokens_per_joule",
  "cost.capital",
];
const NAMES = {
  mfu: "model FLOPs utilization",
  "energy.total": "energy",
  "cost.run": "cost of the run",
  power: "power per device",
};

const times = (ratio) => (ratio >= 100 || ratio < 0.01 ? ratio.toExponential(1) : ratio.toPrecision(3));
const whole = (count) => count.toLocaleString("en", { maximumFractionDigits: 0 });

/** The figures on top, with B and the ratio where B is pinned. */
export function headline(a, b) {
  const figures = HEADLINES.filter((path) => a.outputs[path]).map((path) => {
    const mine = a.outputs[path];
    const other = b?.outputs?.[path];
    const ratio = other && other.value ? mine.value / other.value : null;
    return h(
      "div",
      {},
      h("dt", {}, NAMES[path] ?? mine.doc),
      h(
        "dd",
        { "data-figure": path },
        path === "mfu" ? `${(100 * mine.value).toFixed(1)} %` : mine.text,
        path === "time" && a.interval
          ? h(
              "small",
              {},
              a.interval.text + (a.interval.estimated_stack ? "; the stack's numbers are estimates" : ""),
            )
          : null,
        other
          ? h(
              "small",
              { class: "of-b" },
              `B: ${path === "mfu" ? `${(100 * other.value).toFixed(1)} %` : other.text}` +
                (ratio ? ` (A is ${times(ratio)} ×)` : ""),
            )
          : null,
      ),
    );
  });
  const chosen = Object.entries(a.chosen)
    .map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`)
    .join(", ");
  const why =
    a.candidates > 1
      ? `${a.fits ? "the fastest that fits" : "the least too large"} of ${a.candidates} layouts`
      : "the only one possible";
  return [
    h("h2", {}, a.title),
    h("p", { class: "hint" }, a.strategy),
    chosen ? h("p", { class: "hint" }, `Chosen: ${chosen} (${why})`) : null,
    ...a.notes.map((note) => h("p", { class: "hint" }, note)),
    h("p", {}, bars.fit(a)),
    b ? h("p", { class: "hint of-b" }, `B: ${b.title} · ${b.strategy}`) : null,
    h("dl", { class: "figures" }, figures),
  ].filter(Boolean);
}

/** Cards of parts that add up to a whole: those of times, and all others. */
export function wholes(a, b) {
  const made = ({ path, parts }) => [
    `whole-${path}`,
    TITLES[path] ?? path.replaceAll(".", " "),
    bars.whole(path, parts, a, b),
  ];
  const isTime = ({ path }) => a.outputs[`${path}.total`].unit === "s";
  return [a.wholes.filter(isTime).map(made), a.wholes.filter((one) => !isTime(one)).map(made)];
}

export function memory(a, b) {
  return bars.memory(a, b?.outputs ? b : null);
}

/** What a whole training takes. */
export function training(a) {
  return [
    table(
      "",
      ["", ""],
      Object.values(a.training).map((one) => [one.doc, one.text]),
    ),
  ];
}

export function roofline(host, a) {
  const { rows, collectives } = a.operators;
  const percent = (share) => `${(100 * share).toFixed(0)} %`;
  const bound = (row) =>
    Object.entries(row.bounds)
      .sort((one, other) => other[1] - one[1])
      .filter(([, share]) => share >= 0.05)
      .map(([name, share]) => `${name} ${percent(share)}`)
      .join(", ");
  return [
    ...charts.roofline(host, a.operators),
    h(
      "details",
      {},
      h("summary", {}, `Table of ${rows.length} operators`),
      table(
        "On a device of the slowest pipeline stage",
        ["operator", "runs", "time", "share", "bound by"],
        rows.map((row) => [
          charts.operatorName(row, rows),
          whole(row.count),
          row.time_text,
          percent(row.time / charts.timeOfPass(row, rows)),
          bound(row),
        ]),
        { class: "words-last" },
      ),
    ),
    collectives.length
      ? h(
          "details",
          {},
          h("summary", {}, `Table of ${collectives.length} collectives`),
          table(
            "",
            ["collective", "runs", "time", "exposed"],
            collectives.map((row) => [
              charts.operatorName(row, collectives),
              whole(row.count),
              row.time_text,
              row.exposed_text,
            ]),
          ),
        )
      : null,
  ];
}

// What the tornado shows; it outlasts a redraw.
const shown = { output: "time", layout: false };

/** The tornado of an output that the user chooses. */
export function tornado(a, pick, redraw) {
  const { ranked, inputs } = a.sensitivities;
  if (!(shown.output in ranked)) shown.output = "time";
  const choose = h(
    "select",
    {
      id: "tornado-output",
      onchange: (event) => {
        shown.output = event.target.value;
        redraw();
      },
    },
    Object.keys(ranked).map((path) => h("option", { value: path }, a.outputs[path]?.doc ?? path)),
  );
  choose.value = shown.output;
  const both = h("input", {
    type: "checkbox",
    id: "tornado-layout",
    onchange: (event) => {
      shown.layout = event.target.checked;
      redraw();
    },
  });
  both.checked = shown.layout;
  const rows = ranked[shown.output].filter(([path]) => shown.layout || path.startsWith("system."));
  return [
    h("label", { for: "tornado-output" }, "What moves"),
    choose,
    h(
      "p",
      { class: "check" },
      both,
      h("label", { for: "tornado-layout" }, "degrees and batches of the layout too"),
    ),
    rows.length ? bars.tornado(rows, inputs, pick) : h("p", {}, "Nothing moves it here."),
    h(
      "p",
      { class: "hint" },
      "Exact derivatives at this point; +1 and −1: whole numbers with one more or one less, per 1 %. A name leads to its control.",
    ),
  ];
}

const percent = (slope) => `${slope > 0 ? "+" : "−"}${Number(Math.abs(slope).toPrecision(2))} %`;
const money = (value) =>
  Math.abs(value) >= 1000 ? `$${Math.round(value).toLocaleString("en")}` : `$${value.toPrecision(3)}`;

/** What a dollar buys, and what unpriced inputs are worth. */
export function dollars(a, pick) {
  const { priced, unpriced, capital } = a.sensitivities.dollars;
  const time = a.outputs.time.value;
  const name = (way) =>
    way.name.startsWith("system.")
      ? h(
          "button",
          { type: "button", class: "path", onclick: () => pick(way.name) },
          breakable(way.name.replace(/^system\.(accelerator\.)?/, "")),
        )
      : way.name;
  const first = priced.length
    ? table(
        `For ${money(capital / 100)}, 1 % of the purchase price of ${money(capital)}, spent on`,
        ["", "shorter by", "saved a dollar"],
        priced.map((way) => [
          name(way),
          `${((way.saved * capital) / time).toPrecision(3)} %`,
          `${short(way.saved, "s")}`,
        ]),
      )
    : h("p", {}, "Nothing that is priced here makes the time shorter.");
  const second = unpriced.length
    ? table(
        "The price of this system does not follow these: a datasheet gives them, with no technology " +
          "behind. What 1 % " +
          "more may cost in purchase price before a run gets dearer:",
        ["", "time", "worth"],
        unpriced.map((way) => [name(way), percent(way.time), money(way.worth)]),
      )
    : null;
  return [first, second ? h("div", { class: "more" }, second) : null];
}

/** The layouts of the devices, by time and memory. */
export function front(host, found, now, use) {
  return [
    ...charts.scatter(host, found, now),
    h(
      "p",
      { class: "hint" },
      `${whole(found.fitting)} of ${whole(found.searched)} layouts are possible and fit. The line joins ` +
        "those that no other beats; the larger mark of its own colour is the layout shown here.",
    ),
    table(
      "",
      ["layout", "time", "memory", ""],
      found.best.map((one) => [
        one.layout,
        one.time_text,
        one.peak_text,
        h(
          "button",
          { type: "button", onclick: () => use(one.fields), "aria-label": `Use ${one.layout}` },
          "use",
        ),
      ]),
    ),
  ];
}

/** Every figure of the report. */
export function figures(a, b) {
  const rows = Object.entries(a.outputs).map(([path, one]) => [
    one.doc,
    path,
    one.text,
    ...(b?.outputs ? [b.outputs[path]?.text ?? "–"] : []),
  ]);
  return [
    h(
      "details",
      {},
      h("summary", {}, `All ${rows.length} figures`),
      table("", ["", "path", "A", ...(b?.outputs ? ["B"] : [])], rows),
    ),
  ];
}
