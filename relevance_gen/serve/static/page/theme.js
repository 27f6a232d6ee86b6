/** Sets the theme that the user chose, before the page is drawn. A script without imports, because modules run later. */
{
  const THEME = "relevance_gen.theme";
  const root = document.documentElement;
  const isDark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const chosen = localStorage.getItem(THEME);
  if (chosen) root.dataset.theme = chosen;
  addEventListener("DOMContentLoaded", () => {
    const toggle = document.getElementById("theme");
    const name = () => { toggle.textContent = isDark() ? "Light" : "Dark"; };
    toggle.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      localStorage.setItem(THEME, root.dataset.theme);
      name();
    });
    name();
  });
}
