// Makes buttons of the counts of verdicts: each shows the claims that it counts, and the address remembers which.
(function () {
  "use strict";
  const board = document.querySelector(".scorecard");
  if (!board) return;
  const cards = [...document.querySelectorAll(".claim")].map((claim) => ({
    section: claim.closest("section"),
    given: new Set([...claim.querySelectorAll("[data-place]")].map((e) => `${e.dataset.place}=${e.dataset.verdict}`)),
  }));
  const link = (section) => document.querySelector(`.page-toc a[href="#${section.id}"], .bd-toc a[href="#${section.id}"]`);

  const buttons = [...board.querySelectorAll("li[data-place]")].map((item) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...item.childNodes);
    item.append(button);
    button.addEventListener("click", () => choose(button.getAttribute("aria-pressed") === "true" ? "" : key(item)));
    return { button, item };
  });
  const key = (item) => `${item.dataset.place}=${item.dataset.verdict}`;

  const line = document.createElement("div");
  line.className = "scorecard-shown";
  line.innerHTML = '<p role="status"></p><button type="button">Show all claims</button>';
  board.append(line);
  const [said, all] = line.children;
  all.addEventListener("click", () => { choose(""); buttons[0].button.focus(); });

  // What is chosen stands in the address as #decoder=contradicted; any other address, such as #claim-12, shows all.
  function chosen() {
    const [place, verdict] = decodeURIComponent(location.hash.slice(1)).split("=");
    const found = buttons.find(({ item }) => item.dataset.place === place && item.dataset.verdict === (verdict || "").replace(/-/g, " "));
    return found ? key(found.item) : "";
  }
  function choose(wanted) {
    history.replaceState(null, "", wanted ? "#" + wanted.replace(/ /g, "-") : location.href.split("#")[0]);
    show();
  }
  function show() {
    const wanted = chosen();
    let shown = 0;
    for (const { section, given } of cards) {
      section.hidden = wanted !== "" && !given.has(wanted);
      shown += !section.hidden;
      const entry = link(section);
      if (entry) entry.parentElement.hidden = section.hidden;
    }
    let words = "";
    for (const { button, item } of buttons) {
      const pressed = key(item) === wanted;
      button.setAttribute("aria-pressed", String(pressed));
      if (pressed) words = `: ${item.dataset.verdict} ${item.closest("[role=group]").getAttribute("aria-label").slice("Verdicts ".length)}`;
    }
    said.textContent = wanted ? `${shown} of ${cards.length} claims${words}` : `All ${cards.length} claims are shown`;
    all.hidden = !wanted;
  }
  addEventListener("hashchange", () => {
    show();
    const target = document.getElementById(location.hash.slice(1));
    if (target) target.scrollIntoView();  // it may have been hidden when the browser looked for it
  });
  // On paper nothing is folded.
  addEventListener("beforeprint", () => document.querySelectorAll(".claim details").forEach((d) => { d.open = true; }));
  show();
})();
