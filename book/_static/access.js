// Lets the keyboard scroll wide mathematics, and prints a dark page as the light one that it is on paper.
(function () {
  "use strict";
  const root = document.documentElement, paper = window.matchMedia("print");
  let kept = null;
  function turn(printed) {
    if (printed && root.dataset.theme === "dark") {
      kept = "dark";
      root.dataset.theme = "light";
    } else if (!printed && kept) {
      root.dataset.theme = kept;
      kept = null;
    }
  }
  paper.addEventListener("change", (event) => turn(event.matches));
  window.addEventListener("beforeprint", () => turn(true));
  window.addEventListener("afterprint", () => turn(false));

  // The theme does the same for code, outputs and tables.
  function reach() {
    document.querySelectorAll('.bd-article mjx-container[display="true"], .bd-article div.math').forEach((formula) => {
      if (formula.scrollWidth > formula.clientWidth) formula.tabIndex = 0;
      else formula.removeAttribute("tabindex");
    });
  }
  document.addEventListener("DOMContentLoaded", () => {
    turn(paper.matches);
    const article = document.querySelector(".bd-article");
    // Setting mathematics changes its height, and a narrower window its width.
    if (article) new ResizeObserver(reach).observe(article);
  });
})();
