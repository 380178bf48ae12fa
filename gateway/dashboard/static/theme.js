// Light, dark, or as the system has it.

const STORED = "outrider.theme";
const THEMES = ["system", "light", "dark"];

/** Makes `button` go through the themes; the choice outlives the page. */
export function themeToggle(button) {
  const show = (theme) => {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
  };
  const stored = localStorage.getItem(STORED);
  let at = Math.max(THEMES.indexOf(stored), 0);
  show(THEMES[at]);
  button.addEventListener("click", () => {
    at = (at + 1) % THEMES.length;
    localStorage.setItem(STORED, THEMES[at]);
    show(THEMES[at]);
  });
}
