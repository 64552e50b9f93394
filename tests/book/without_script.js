// What a page shows where no script runs.
async () => {
  const seen = e => e.checkVisibility({visibilityProperty: true}) && e.getBoundingClientRect().height > 0;
  const images = [...document.querySelectorAll("figure.tbc-figure img.only-light")];
  const drawn = await Promise.all(images.map(i => i.decode().then(() => i.naturalWidth > 0, () => false)));
  const all = selector => [...document.querySelectorAll(selector)].filter(e => !e.closest("details, dialog"));
  return {
    title: seen(document.querySelector("article h1")),
    words: document.querySelector("article").innerText.split(/\s+/).length,
    hidden: all("article h2, article p, article table")
      .filter(e => e.textContent.trim() && !seen(e)).map(e => e.outerHTML.slice(0, 80)),
    images: images.filter((image, n) => !(drawn[n] && (seen(image) || image.closest("details")))).length,
    double: [...document.querySelectorAll("figure.tbc-figure img.only-dark")].filter(seen).length,
  };
}
