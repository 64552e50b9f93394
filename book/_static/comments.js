/* Comments are issues of the repository, shown by utterances; its script is loaded when a reader opens them. */
for (const box of document.querySelectorAll(".reader-comments")) {
  box.addEventListener("toggle", () => {
    const script = document.createElement("script");
    script.src = "https://utteranc.es/client.js";
    script.crossOrigin = "anonymous";
    for (const [name, value] of Object.entries(box.dataset)) script.setAttribute(name.replace(/[A-Z]/g, "-$&").toLowerCase(), value);
    box.append(script);
  }, {once: true});
}
