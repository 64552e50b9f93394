// Shows what is behind a link to a term, a citation or a figure while the pointer or the focus is on it. Escape closes it.
(function () {
  "use strict";
  let box = null, open = null;
  function close() {
    if (open) open.removeAttribute("aria-describedby");
    if (box) box.remove();
    box = open = null;
  }
  function show(link) {
    if (link === open) return;
    close();
    open = link;
    box = document.createElement("div");
    box.className = "link-preview";
    box.id = "link-preview";
    box.setAttribute("role", "tooltip");
    box.textContent = link.dataset.preview;
    const picture = link.dataset[document.documentElement.dataset.theme === "dark" ? "dark" : "light"];
    if (picture) {
      const image = box.appendChild(document.createElement("img"));
      image.alt = "";
      image.onload = place;
      image.src = picture;
    }
    document.body.appendChild(box);
    link.setAttribute("aria-describedby", box.id);
    place();
  }
  function place() {
    if (!open) return;
    // Below the link, or above it where there is no room below; never beyond the edge of the window.
    const at = open.getClientRects()[0], width = document.documentElement.clientWidth;
    const below = at.bottom + box.offsetHeight + 8 < window.innerHeight;
    box.style.left = Math.max(8, Math.min(at.left, width - box.offsetWidth - 8)) + window.scrollX + "px";
    box.style.top = (below ? at.bottom + 4 : at.top - box.offsetHeight - 4) + window.scrollY + "px";
  }
  function linkOf(event) {
    return event.target.closest ? event.target.closest("a[data-preview]") : null;
  }
  ["mouseover", "focusin"].forEach((kind) => document.addEventListener(kind, (event) => {
    const link = linkOf(event);
    if (link) show(link);
    else if (box && !box.contains(event.target)) close();
  }));
  document.addEventListener("focusout", close);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
})();
