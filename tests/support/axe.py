"""What axe-core finds on a page, and where a reader at the keyboard would lose sight of the focus."""

from importlib.resources import files

from playwright.sync_api import Page

SCRIPT = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")

# Contrast takes nine tenths of axe's time, element by element, and depends on nothing but colours, size and weight: one
# element of each look stands for all that look the same. Width and theme change looks; all else they leave as it is.
_FIND = """async ([theme, coloursAlone]) => {
  const still = document.createElement("style");
  still.textContent = "* {transition: none !important; animation: none !important}";
  document.head.append(still);
  if (theme) document.documentElement.dataset.theme = theme;
  await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
  const numbers = new Map(), ground = new Map(), looks = new Map();
  const number = text => numbers.get(text) ?? (numbers.set(text, numbers.size + 1), numbers.size);
  for (const e of document.querySelectorAll("body, body *")) {
    const s = getComputedStyle(e), below = ground.get(e.parentElement) ?? 0;
    const own = [s.backgroundColor, s.backgroundImage, s.opacity, s.filter].join();
    ground.set(e, own === "rgba(0, 0, 0, 0),none,1,none" ? below : number(`${below} ${own}`));
    const words = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (!(words || e.matches("input, select, textarea")) || !e.checkVisibility({visibilityProperty: true})) continue;
    const look = [ground.get(e), s.color, s.fontSize, s.fontWeight, s.textShadow].join();
    looks.set(look, [...(looks.get(look) ?? []), e].slice(0, 2));
  }
  const common = {resultTypes: ["violations"], preload: false};
  const colours = {...common, runOnly: {type: "rule", values: ["color-contrast"]}};
  const reports = [await axe.run({include: [...looks.values()].flat()}, colours)];
  // Experimental in axe: whoever speaks to a page says what stands on a button.
  const rules = {"color-contrast": {enabled: false}, "label-content-name-mismatch": {enabled: true}};
  if (!coloursAlone) reports.push(await axe.run(document, {...common, rules}));
  still.remove();
  return reports.flatMap(r => r.violations).filter(v => ["serious", "critical"].includes(v.impact)).flatMap(
    v => v.nodes.map(n => `${v.id}: ${n.target.join(" ")}: ${[...n.any, ...n.all, ...n.none][0]?.message}`));
}"""

_UNSEEN = """() => {
  const reached = [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")]
    .filter(e => e.tabIndex >= 0 && !e.disabled && e.checkVisibility({visibilityProperty: true}));
  const unseen = [];
  for (const e of reached) {
    e.focus({preventScroll: true});
    const s = getComputedStyle(e);
    const shown = s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2 && s.outlineColor !== "rgba(0, 0, 0, 0)";
    if (document.activeElement === e && !shown) unseen.push(e.outerHTML.slice(0, 120));
  }
  document.activeElement.blur();
  return unseen;
}"""


def findings(tab: Page, theme: str | None = None, *, colours_alone: bool = False) -> list[str]:
    """Everything serious or critical, in a theme that is switched to in place; None for the one that is shown."""
    if not tab.evaluate("'axe' in window"):
        tab.evaluate(SCRIPT)
    return tab.evaluate(_FIND, [theme, colours_alone])


def unseen(tab: Page) -> list[str]:
    """What can be focused by the keyboard and does not show it."""
    tab.keyboard.press("Tab")  # Browsers mark the focus of whoever used a key last.
    return tab.evaluate(_UNSEEN)
