// What a page shows in one colour scheme, asked for at once: each question to a tab is a way there and back.
async scheme => {
  const seen = e => e && e.checkVisibility({visibilityProperty: true}) && e.getBoundingClientRect().height > 0;
  const style = e => getComputedStyle(e);
  const images = [...document.images];
  for (const image of images) image.loading = "eager";
  const drawn = await Promise.all(images.map(i => i.decode().then(() => i.naturalWidth > 0, () => false)));
  const other = {light: "dark", dark: "light"}[scheme];
  const wrong = figure => {
    // On a phone the panels of a picture stand below each other, each a window on a copy of it.
    const shown = [...figure.querySelectorAll(`img.only-${scheme}`)];
    const image = shown.find(seen) || shown[0];
    // What lies behind an image: its own ground, its figure's and that of the notebook cell around it.
    const grounds = [image, figure, figure.parentElement].map(e => style(e).backgroundColor);
    return {
      "its picture is hidden": !seen(image),
      "the other scheme's picture is shown": [...figure.querySelectorAll(`img.only-${other}`)].some(seen),
      "no caption": !seen(figure.querySelector("figcaption")),
      "a ground behind the picture": grounds.some(colour => colour !== "rgba(0, 0, 0, 0)"),
      "a filter over the picture": style(image).filter !== "none",
    };
  };
  // The explorer, and what moves on the front page, hide the figure that stands in on paper and without a script.
  const figures = [...document.querySelectorAll("figure.tbc-figure")].filter(f => !f.closest(".cx-static") && !f.hidden);
  const named = problems => Object.keys(problems).filter(name => problems[name]);
  // A figure that is folded away is looked at as who unfolds it sees it.
  const folded = [...document.querySelectorAll("article details.sd-dropdown:not([open])")];
  folded.forEach(e => { e.open = true; });
  const wrongs = figures.flatMap(figure => named(wrong(figure)));
  folded.forEach(e => { e.open = false; });
  return {
    theme: document.documentElement.dataset.theme,
    headings: document.querySelectorAll("article h1").length,
    broken: images.filter((_, n) => !drawn[n]).map(i => i.src.slice(0, 80)),
    written: document.querySelectorAll("article .math").length,
    set: document.querySelectorAll("article .math mjx-container").length,
    errors: document.querySelectorAll("mjx-merror, [data-mml-node=merror]").length,
    figures: wrongs,
    width: document.documentElement.scrollWidth,
  };
}
