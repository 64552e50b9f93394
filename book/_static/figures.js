// Figures: enlarged in a dialogue, and on a phone panel below panel. Without this script they are as in print, or scroll.
(function () {
  "use strict";
  const phone = window.matchMedia("(max-width: 600px)");
  function element(name, attributes, ...children) {
    const made = document.createElement(name);
    Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
    made.append(...children);
    return made;
  }
  function button(text, act, label) {
    const made = element("button", label ? { type: "button", "aria-label": label } : { type: "button" }, text);
    made.addEventListener("click", act);
    return made;
  }
  function nameOf(figure) {
    const number = figure.querySelector(".tbc-number");
    return number ? number.textContent.replace(/\.$/, "") : figure.id.replace(/^fig-/, "").replace(/-/g, " ");
  }
  function images(figure, wide) {
    return [...figure.querySelectorAll(".tbc-view img")].map((image) => {
      const copy = image.cloneNode();
      copy.loading = "eager";
      copy.style.width = wide + "px";
      return copy;
    });
  }

  function enlarge(figure) {
    const sheet = element("div", { class: "tbc-sheet", tabindex: "0", role: "region", "aria-label": "Picture" });
    const dialog = element("dialog", { class: "tbc-large bd-article", "aria-label": nameOf(figure) + ", enlarged" });
    const first = figure.querySelector(".tbc-view img"), ratio = (first.style.aspectRatio || "3 / 2").split("/");
    const shape = ratio[0] / ratio[1];
    let wide;
    function resize(to) {
      wide = Math.min(Math.max(to, 200), 6000);
      sheet.querySelectorAll("img").forEach((image) => { image.style.width = wide + "px"; });
    }
    const by = (factor) => () => resize(wide * factor);
    dialog.append(element("div", { class: "tbc-tools" }, element("strong", {}, nameOf(figure)),
      button("Smaller", by(1 / 1.4)), button("Larger", by(1.4)), button("Close", () => dialog.close())), sheet);
    const holder = element("figure", { class: "tbc-figure" });
    holder.append(...images(figure, 100));
    sheet.append(holder);
    dialog.addEventListener("keydown", (event) => {
      if (event.key === "+" || event.key === "=") resize(wide * 1.4);
      if (event.key === "-") resize(wide / 1.4);
    });
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
    // As large as fits; on a phone at least so large that its words can be read, and the sheet scrolls.
    const least = parseFloat(figure.style.getPropertyValue("--least")) || 720;
    resize(Math.max(least, Math.min(sheet.clientWidth - 32, (sheet.clientHeight - 32) * shape)));
  }

  // What scrolls sideways can be scrolled by keys as well.
  function reach(box) {
    const scrolls = box.scrollWidth > box.clientWidth;
    box.toggleAttribute("tabindex", scrolls);
    if (!scrolls) return;
    box.tabIndex = 0;
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", "Picture, scrolls sideways");
  }

  function stack(figure) {
    const view = figure.querySelector(".tbc-view"), old = figure.querySelector(".tbc-panels");
    if (old) old.remove();
    figure.classList.toggle("tbc-stacked", phone.matches && "windows" in figure.dataset);
    reach(view);
    if (!figure.classList.contains("tbc-stacked")) return;
    // Panels, and behind a tilde what stands above, between or under them.
    const pieces = figure.dataset.windows.split(" ").map((piece) => ({
      loose: piece.startsWith("~"),
      windows: piece.replace("~", "").split("+").map((one) => one.split(",").map(Number)),
    }));
    const panels = element("div", { class: "tbc-panels", role: "group", "aria-label": view.querySelector("img").alt });
    view.after(panels);
    const least = parseFloat(figure.style.getPropertyValue("--least")) / 720, room = panels.clientWidth - 1;
    const most = Math.max(...pieces.map(({ loose, windows }) => {
      const widths = windows.map((one) => one[2]);
      return loose ? Math.max(...widths) : widths.reduce((sum, width) => sum + width);
    }));
    // As many panels side by side as fit, and these as large as the room allows, up to half as large again.
    const beside = Math.max(1, Math.floor(room / (most * least)));
    const scale = Math.max(least, Math.min(room / (beside * most), 1.5 * least));
    pieces.forEach((piece) => {
      const panel = element("div", { class: piece.loose ? "tbc-panel tbc-loose" : "tbc-panel" });
      piece.windows.forEach(([left, top, width, height]) => {
        const one = element("div", { class: "tbc-window" });
        one.style.width = width * scale + "px";
        one.style.height = height * scale + "px";
        images(figure, 720 * scale).forEach((image) => {
          image.alt = "";
          image.style.left = -left * scale + "px";
          image.style.top = -top * scale + "px";
          one.append(image);
        });
        panel.append(one);
      });
      panels.append(panel);
    });
    panels.addEventListener("click", () => enlarge(figure));
    const shown = [...panels.querySelectorAll(".tbc-panel")];
    shown.forEach(reach);
    figure.classList.toggle("tbc-wide", shown.some((panel) => panel.tabIndex === 0));
  }

  document.addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll("figure.tbc-figure[id]").forEach((figure) => {
      const view = figure.querySelector(".tbc-view");
      view.addEventListener("click", () => enlarge(figure));
      const more = button("Enlarge", () => enlarge(figure), "Enlarge " + nameOf(figure));
      // The front page takes the links of one along to the figure that moves in its place.
      figure.querySelector(".tbc-links")?.prepend(element("span", {}, more));
      stack(figure);
    });
    // Panels are as large as the room allows, which a turned phone changes; its height changes while one scrolls.
    let wide = window.innerWidth;
    window.addEventListener("resize", () => {
      if (window.innerWidth === wide) return;
      wide = window.innerWidth;
      document.querySelectorAll("figure.tbc-figure[id]").forEach(stack);
    });
  });
})();
