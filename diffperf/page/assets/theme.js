// The colours of the page.

import { byId } from "./dom.js";

/** Colours: as the system has them, light, dark. */
export function theme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const names = ["auto", "light", "dark"];
  let chosen = localStorage.getItem("theme") || "auto";
  const apply = () => {
    document.documentElement.dataset.theme = chosen === "auto" ? (dark.matches ? "dark" : "light") : chosen;
    byId("theme").textContent = `Colours: ${chosen}`;
    byId("theme").setAttribute(
      "aria-label",
      `Colours: ${chosen}${chosen === "auto" ? ", as the system has them" : ""}`,
    );
  };
  byId("theme").addEventListener("click", () => {
    chosen = names[(names.indexOf(chosen) + 1) % names.length];
    localStorage.setItem("theme", chosen);
    apply();
  });
  dark.addEventListener("change", apply);
  apply();
}
