// Light or dark, and names of sliders. ON_DARK (colours) and LABELS (of controls) stand before it.
const LOOKS = ["light", "dark"], root = document.documentElement, system = matchMedia("(prefers-color-scheme: dark)");
const ON_LIGHT = Object.fromEntries(Object.entries(ON_DARK).map(([light, dark]) => [dark, light]));
let painted = 0, named = 0;
function kept(look) {  // a browser may forbid to keep anything
  try {
    if (look !== undefined) localStorage.setItem("look", look);
    return localStorage.getItem("look");
  } catch { return null; }
}
function follow(look) {
  if (LOOKS.includes(look)) root.dataset.look = look; else delete root.dataset.look;
}
follow(kept());
function paint(page) {
  const dark = root.dataset.look ? root.dataset.look === "dark" : system.matches, table = dark ? ON_DARK : ON_LIGHT;
  root.dataset.shown = dark ? "dark" : "light";
  painted = page._all_models.size;
  for (const model of page._all_models.values()) {
    const changed = {};
    for (const property of model) {
      if (!/color$|^palette$/.test(property.attr) || property.is_unset) continue;
      const value = property.get_value(), other = (colour) => table[colour] ?? colour;
      if (Array.isArray(value)) changed[property.attr] = value.map(other);
      else if (table[value]) changed[property.attr] = other(value);
      else if (table[value?.value]) changed[property.attr] = {value: other(value.value)};
    }
    model.setv(changed, {sync: false});
  }
}
// sliders have no names of their own; their boxes do
function name(tree, label) {
  for (const part of tree.querySelectorAll("*")) {
    const kind = [...part.classList].find((one) => one.startsWith("slider-"))?.slice(7);
    if (part.shadowRoot) name(part.shadowRoot, LABELS[kind] ?? label);
    if (part.role === "slider" && label) { part.setAttribute("aria-label", label); named++; }
  }
}
document.addEventListener("DOMContentLoaded", () => {
  const choice = document.getElementById("look"), page = () => globalThis.Bokeh?.documents?.[0];
  const repaint = () => { if (page()) paint(page()); };
  choice.value = root.dataset.look ?? "system";
  choice.addEventListener("change", () => { kept(choice.value); follow(choice.value); repaint(); });
  system.addEventListener("change", repaint);
  const waiting = setInterval(() => {
    if (!page()) return;
    clearInterval(waiting);
    repaint();
    page().on_change(() => {  // a tab that is opened for the first time brings its charts along
      if (named && page()._all_models.size <= painted) return;
      painted = page()._all_models.size;
      setTimeout(() => { repaint(); name(document); }, 100);
    });
  }, 20);
});
