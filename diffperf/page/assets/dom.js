// Elements of HTML and SVG in one line each.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

/** An element of HTML; an attribute that starts with "on" is a listener, null and false leave it out. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An element of SVG. */
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export function byId(id) {
  return document.getElementById(id);
}

/** A table with a heading row; cells are texts, nodes or null, the first of a row heads it. */
export function table(caption, headings, rows, attributes = {}) {
  const cell = (value, index) => (index === 0 ? h("th", { scope: "row" }, value) : h("td", {}, value));
  return h(
    "div",
    { class: "scroll" },
    h(
      "table",
      attributes,
      caption ? h("caption", {}, caption) : null,
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          headings.map((text) => h("th", { scope: "col" }, text)),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((row) => h("tr", {}, row.map(cell))),
      ),
    ),
  );
}

/** A number in few digits with a prefix of SI: 2.5e12 is "2.5 T", with the unit "B/s" it is "2.5 TB/s". */
export function short(value, unit = "") {
  if (value === 0) return `0 ${unit}`.trimEnd();
  const prefixes = {
    "-15": "f",
    "-12": "p",
    "-9": "n",
    "-6": "µ",
    "-3": "m",
    0: "",
    3: "k",
    6: "M",
    9: "G",
    12: "T",
    15: "P",
    18: "E",
    21: "Z",
  };
  const power = Math.min(21, Math.max(-15, 3 * Math.floor(Math.log10(Math.abs(value) * (1 + 1e-12)) / 3)));
  return `${Number((value / 10 ** power).toPrecision(3))} ${prefixes[power]}${unit}`.trimEnd();
}

/** A dotted path that may break after its dots and underscores. */
export function breakable(path) {
  return path
    .split(/(?<=[._])/)
    .flatMap((part, index) => (index ? [document.createElement("wbr"), part] : [part]));
}

const FOCUSABLE = "button, select, input, summary";

/** A card with a title; without a body it is removed. The focus inside it and open details are kept. */
export function card(name, title, body, kind = "") {
  const id = `card-${name}`;
  let section = byId(id);
  if (!body) {
    section?.remove();
    return;
  }
  if (!section) {
    section = h(
      "section",
      { id, class: kind, "aria-labelledby": `${id}-title` },
      h("h2", { id: `${id}-title` }, title),
      h("div"),
    );
    byId(kind || "cards").append(section);
  }
  const host = section.lastElementChild;
  const opened = [...host.querySelectorAll("details")].map((one) => one.open);
  const focused = host.contains(document.activeElement) ? document.activeElement : null;
  const place = focused ? [...host.querySelectorAll(FOCUSABLE)].indexOf(focused) : -1;
  host.replaceChildren(...body(host).filter((child) => child !== null));
  [...host.querySelectorAll("details")].forEach((one, index) => (one.open = Boolean(opened[index])));
  if (place >= 0) host.querySelectorAll(FOCUSABLE)[place]?.focus();
}
