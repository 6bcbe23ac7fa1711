// Before anything is drawn: the theme that was chosen, else that of the system.
"use strict";
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("rooftop-theme"); } catch { /* storage may be forbidden */ }
  const dark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
})();
