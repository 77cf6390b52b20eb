// The dialog of exports.

import { byId, h } from "./dom.js";

/** Shows the exported texts, or why there are none. */
export function showExports(found) {
  const labels = { cli: "Command line", python: "Python", toml: "TOML: a space for diffperf sweep" };
  const body =
    found.error || found.compiling.length
      ? [h("p", {}, found.error?.line ?? "The layout is still being compiled: try again in a moment.")]
      : Object.entries(labels).flatMap(([name, label]) => {
          const text = h("textarea", {
            id: `export-${name}`,
            readonly: true,
            rows: Math.min(18, found[name].split("\n").length + 2),
          });
          text.value = found[name];
          const button = h(
            "button",
            {
              type: "button",
              onclick: async () => {
                text.select();
                await navigator.clipboard?.writeText(text.value);
                button.textContent = "copied";
              },
            },
            "Copy",
          );
          return [h("h3", {}, h("label", { for: `export-${name}` }, label)), text, h("div", {}, button)];
        });
  byId("exports-body").replaceChildren(...body);
  byId("exports").showModal();
}
