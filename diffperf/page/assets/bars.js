// Tables whose rows have bars: parts of a whole, the memory of a device, tornados.

import { breakable, h, s } from "./dom.js";

/** The bar of a row: a share of the widest, and below it the share of B. */
function bar(a, b, widest, classes = ["fill-a", "fill-b"]) {
  const width = (value) => (widest > 0 ? Math.max(0, (100 * value) / widest) : 0);
  const two = b !== null && b !== undefined;
  return h(
    "td",
    { class: "bar" },
    s(
      "svg",
      { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true", class: two ? "two" : "" },
      s("rect", { x: 0, y: 0, width: width(a), height: two ? 5 : 10, class: classes[0] }),
      two ? s("rect", { x: 0, y: 5, width: width(b), height: 5, class: classes[1] }) : null,
    ),
  );
}

const NEGLIGIBLE = 1e-6; // of a whole, as in the reports of the command line

/** The parts of a whole of A, and of B where there is one, largest first; parts of nothing are left out. */
export function whole(path, parts, a, b) {
  const value = (answer, name) => answer?.outputs?.[name]?.value ?? 0;
  const rows = parts.map((name) => ({ name, a: value(a, name), b: value(b, name) }));
  const most = Math.max(value(a, `${path}.total`), value(b, `${path}.total`));
  const shown = rows
    .filter((row) => Math.max(row.a, row.b) > NEGLIGIBLE * most)
    .sort((one, other) => other.a - one.a || other.b - one.b);
  const widest = Math.max(...shown.map((row) => Math.max(row.a, row.b)), 0);
  const total = a.outputs[`${path}.total`];
  const share = (x) => (total.value ? `${((100 * x) / total.value).toFixed(1)} %` : "");
  const text = (answer, name) => answer?.outputs?.[name]?.text ?? "–";
  const body = shown.map((row) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, (a.outputs[row.name] ?? b.outputs[row.name]).doc),
      bar(row.a, b ? row.b : null, widest),
      h("td", {}, text(a, row.name)),
      h("td", {}, share(row.a)),
      b ? h("td", { class: "of-b" }, text(b, row.name)) : null,
    ),
  );
  body.push(
    h(
      "tr",
      { class: "total" },
      h("th", { scope: "row" }, "total"),
      h("td"),
      h("td", {}, total.text),
      h("td"),
      b ? h("td", { class: "of-b" }, text(b, `${path}.total`)) : null,
    ),
  );
  const left = rows.length - shown.length;
  return [
    framed(["", "", b ? "A" : "", "share", ...(b ? ["B"] : [])], body),
    left ? h("p", { class: "hint" }, `${left} ${left === 1 ? "part" : "parts"} of nothing left out`) : null,
  ];
}

function framed(headings, body) {
  return h(
    "div",
    { class: "scroll" },
    h(
      "table",
      {},
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          headings.map((text, index) => h("th", { scope: "col", class: index === 1 ? "bar" : null }, text)),
        ),
      ),
      h("tbody", {}, body),
    ),
  );
}

const COLOURS = 10;

/** Stacked bars of what fills a device's memory, against what it has. */
export function memory(a, b) {
  const answers = b
    ? [
        ["A", a],
        ["B", b],
      ]
    : [["", a]];
  const most = Math.max(...answers.map(([, one]) => Math.max(one.memory.peak, one.memory.capacity))) * 1.02;
  const docs = a.memory.parts.map((part) => part.doc);
  const bars = answers.map(([name, one]) => {
    let x = 0;
    const parts = one.memory.parts.map((part) => {
      const width = (100 * part.value) / most;
      const colour = Math.max(0, docs.indexOf(part.doc)) % COLOURS;
      const rect = s("rect", { x, y: 4, width, height: 22 });
      rect.style.fill = `var(--c${colour})`;
      rect.append(s("title", {}, `${part.doc}: ${part.text}`));
      x += width;
      return rect;
    });
    const limit = (100 * one.memory.capacity) / most;
    return h(
      "div",
      {},
      name ? h("p", { class: name === "B" ? "hint of-b" : "hint" }, name) : null,
      s(
        "svg",
        {
          class: "chart",
          viewBox: "0 0 100 30",
          preserveAspectRatio: "none",
          height: 34,
          role: "img",
          "aria-label": `${name} ${fit(one).textContent}`,
        },
        parts,
        s("rect", {
          x: limit - 0.3,
          y: 0,
          width: 0.6,
          height: 30,
          class: one.fits ? "fill-good" : "fill-bad",
        }),
      ),
    );
  });
  const legend = a.memory.parts
    .filter((part) => part.value > 0)
    .map((part) => {
      const mark = h("i");
      mark.style.background = `var(--c${docs.indexOf(part.doc) % COLOURS})`;
      return h("li", {}, mark, `${part.doc}: ${part.text}`);
    });
  return [
    ...bars,
    h("p", {}, fit(a), ` The mark is the memory of a device.`),
    h("ul", { class: "legend" }, legend),
  ];
}

/** Whether an answer fits memory, as a sentence. */
export function fit(answer) {
  const peak = answer.outputs["memory.peak"].text;
  const capacity = answer.outputs["memory.capacity"].text;
  const over = answer.memory.peak / answer.memory.capacity - 1;
  const much = over >= 10 ? `${over.toFixed(0)} times` : `${(100 * over).toFixed(1)} %`;
  return answer.fits
    ? h("span", { class: "fits" }, `Fits: ${peak} of ${capacity} per device.`)
    : h("span", { class: "short" }, `Does not fit: ${peak} of ${capacity} per device, ${much} too much.`);
}

function signed(slope) {
  const size = Math.abs(slope);
  return `${slope > 0 ? "+" : "−"}${size < 5e-5 ? size.toExponential(0) : size.toFixed(4)} %`;
}

/** Elasticities with a bar to each side of zero; `pick(path)` is called for an input. `step` is "slope" of a
 * derivative; of a whole number it is the step that the estimate was run again with. */
export function tornado(ranked, inputs, pick, top = 20) {
  const rows = ranked.slice(0, top);
  const widest = Math.max(...rows.map(([, slope]) => Math.abs(slope)), 1e-12);
  const body = rows.map(([path, slope, step]) => {
    const half = (50 * Math.abs(slope)) / widest;
    const name = path.replace(/^system\./, "").replace(/^accelerator\./, "");
    return h(
      "tr",
      {},
      h(
        "th",
        { scope: "row", title: inputs[path].doc },
        path.startsWith("system.")
          ? h(
              "button",
              { type: "button", class: "path", onclick: () => pick(path), title: inputs[path].doc },
              breakable(name),
            )
          : breakable(name),
        step === "slope" ? "" : ` ${step}`,
      ),
      h(
        "td",
        { class: "bar" },
        s(
          "svg",
          { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
          s("rect", {
            x: slope < 0 ? 50 - half : 50,
            y: 0,
            width: half,
            height: 10,
            class: slope < 0 ? "fill-good" : "fill-b",
          }),
          s("rect", { x: 49.8, y: 0, width: 0.4, height: 10, class: "fill-a" }),
        ),
      ),
      h("td", {}, signed(slope)),
      h("td", {}, inputs[path].text),
    );
  });
  return framed(["+1 % of", "", "changes it by", "value"], body);
}
