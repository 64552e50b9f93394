// Adds to what figures and tables offer what only a script can: pixels, buttons that copy, the address of this copy of
// the book. Without it the links and the texts are there.
(function () {
  "use strict";
  const served = location.protocol.startsWith("http");
  const root = new URL(document.documentElement.dataset.content_root || "./", location.href);
  const waiting = {};  // by name of a picture: who waits for its text
  const WIDE = 2160;  // of a picture of pixels: three to each of the page

  function button(text, act) {
    const made = document.createElement("button");
    made.type = "button";
    made.append(text);
    made.addEventListener("click", () => act(made));
    return made;
  }

  // On a disk a page may read no file but scripts: each drawing lies there as one, packed.
  window.tbcPicture = async (name, packed) => {
    const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
    waiting[name](await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text());
  };
  function drawing(address) {
    if (served) return fetch(address).then((answer) => answer.text());
    return new Promise((done, failed) => {
      const script = document.createElement("script");
      script.src = address.replace(/\.svg$/, ".js");
      script.onerror = failed;
      waiting[script.src.split("/").pop().slice(0, -3)] = done;
      document.head.append(script);
    });
  }
  function save(blob, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
  }
  // As it is seen: in the colours of the page, on its ground.
  async function savePixels(text, name) {
    const style = getComputedStyle(document.documentElement), picture = new Image();
    const dark = document.documentElement.dataset.theme === "dark";
    picture.src = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" })) + (dark ? "#dark" : "");
    await picture.decode();
    const canvas = document.createElement("canvas"), brush = canvas.getContext("2d");
    canvas.width = WIDE;
    canvas.height = Math.round((WIDE * picture.naturalHeight) / picture.naturalWidth);
    brush.fillStyle = style.getPropertyValue("--pst-color-background") || "#fff";
    brush.fillRect(0, 0, canvas.width, canvas.height);
    brush.drawImage(picture, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save(blob, name), "image/png");
  }

  function copy(made, text) {
    const report = (word) => { made.textContent = word; setTimeout(() => { made.textContent = "Copy"; }, 2000); };
    const select = () => { getSelection().selectAllChildren(text); report("Selected"); };
    if (!navigator.clipboard) return select();
    navigator.clipboard.writeText(text.textContent).then(() => report("Copied"), select);
  }

  function complete(menu) {
    const svg = menu.querySelector('li a[download$=".svg"]');
    if (svg) {
      const item = document.createElement("li"), name = svg.download.replace(/svg$/, "png");
      item.append(button("PNG", () => drawing(svg.href).then((text) => savePixels(text, name))));
      svg.parentElement.after(item);
      // From a disk a browser would open it in the place of the page.
      if (!served) svg.addEventListener("click", (event) => {
        event.preventDefault();
        drawing(svg.href).then((text) => save(new Blob([text], { type: "image/svg+xml" }), svg.download));
      });
    }
    menu.querySelectorAll("pre").forEach((text) => {
      text.previousElementSibling.append(button("Copy", (made) => copy(made, text)));
    });
    menu.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      menu.open = false;
      menu.querySelector("summary").focus();
    });
    if (!served) return;
    menu.querySelectorAll(".tbc-root").forEach((place) => { place.textContent = root.href; });
    menu.querySelector(".tbc-note")?.remove();
  }

  document.addEventListener("DOMContentLoaded", () => document.querySelectorAll(".tbc-offers").forEach(complete));
})();
