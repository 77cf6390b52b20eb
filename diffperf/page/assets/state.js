// The state of the page: what the query of its address says, and that of B in the fragment.

export const TEXTS = ["model", "system", "phase", "devices", "stack", "calibration", "tokens"];

/** The state of a query: texts by control, fields of the layout, overridden inputs by path. */
export function parse(query) {
  const state = { texts: {}, strategy: {}, settings: {} };
  for (const [key, value] of new URLSearchParams(query)) {
    if (key === "set") {
      const equals = value.indexOf("=");
      const path = equals < 0 ? value : value.slice(0, equals);
      state.settings[path.trim()] = equals < 0 ? "" : value.slice(equals + 1).trim();
    } else if (TEXTS.includes(key)) {
      state.texts[key] = value;
    } else {
      state.strategy[key] = value;
    }
  }
  return state;
}

/** The query of a state; empty values are left out. */
export function query(state) {
  const pairs = [];
  for (const key of TEXTS) if (state.texts[key]) pairs.push([key, state.texts[key]]);
  for (const [key, value] of Object.entries(state.strategy)) if (value) pairs.push([key, value]);
  for (const [path, text] of Object.entries(state.settings)) pairs.push(["set", `${path}=${text}`]);
  return new URLSearchParams(pairs).toString();
}

/** The states A and B that the address of the page holds; B is null where there is none. */
export function fromAddress(defaults) {
  const a = parse(location.search);
  for (const [key, value] of Object.entries(defaults)) a.texts[key] = a.texts[key] || value;
  const fragment = new URLSearchParams(location.hash.slice(1));
  return { a, b: fragment.get("b") ? parse(fragment.get("b")) : null };
}

/** Writes both states into the address, without a new entry in the history. */
export function toAddress(a, b) {
  const fragment = b ? `#${new URLSearchParams({ b: query(b) })}` : "";
  history.replaceState(null, "", `${location.pathname}?${query(a)}${fragment}`);
}

/** A copy that shares nothing. */
export function copy(state) {
  return JSON.parse(JSON.stringify(state));
}
