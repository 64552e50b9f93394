/* The tabs of the explorer's page. The address says which is open, and the scripts of both heed it: what a tab shows is
   loaded when it is first opened. Without a script both stand one below the other. */
(() => {
  "use strict";
  const OWN = "own-prompt", panels = [...document.querySelectorAll(".cx-panel")];
  const left = ["", `${OWN}=`];
  let shown = 0;

  const tabs = ["Measured models", "Your own prompt"].map((name, at) => {
    const tab = document.createElement("button");
    Object.assign(tab, {type: "button", id: `cx-tab-${at}`, textContent: name});
    tab.setAttribute("role", "tab");
    // What was shown in a tab is shown again.
    tab.addEventListener("click", () => {
      if (at === shown) return;
      left[shown] = location.hash.slice(1) || left[shown];
      location.hash = left[at];
    });
    tab.addEventListener("keydown", ({key}) => {
      if (key !== "ArrowLeft" && key !== "ArrowRight") return;
      tabs[1 - at].focus();
      tabs[1 - at].click();
    });
    return tab;
  });
  const list = document.createElement("div");
  list.className = "cx-tabs";
  list.setAttribute("role", "tablist");
  list.setAttribute("aria-label", "Explorer");
  list.append(...tabs);
  panels[0].before(list);
  panels.forEach((panel, at) => {
    panel.setAttribute("role", "tabpanel");
    panel.setAttribute("aria-labelledby", tabs[at].id);
  });

  function follow() {
    const hash = location.hash.slice(1), own = new URLSearchParams(hash).has(OWN);
    // The address of a heading leaves the tab as it is.
    if (own || hash === "" || hash.includes("=")) shown = Number(own);
    tabs.forEach((tab, at) => {
      tab.setAttribute("aria-selected", at === shown);
      tab.tabIndex = at === shown ? 0 : -1;
      panels[at].hidden = at !== shown;
    });
    // Links by which keys skip to something belong to a tab: the style hides those of the other.
    document.documentElement.dataset.explorerTab = shown;
  }
  window.addEventListener("hashchange", follow);
  follow();
})();
