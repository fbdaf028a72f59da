// Sets the theme before anything is painted. No module: those run later.
(() => {
  let theme = "auto";
  try {
    theme = JSON.parse(localStorage.getItem("llmk.theme")) || "auto";
  } catch {
    // Storage is forbidden, or holds something else.
  }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();
