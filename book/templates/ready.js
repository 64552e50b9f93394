async () => {
  for (const image of document.images) image.loading = "eager";
  await Promise.all([...document.images].map(image => image.decode().catch(() => null)));
  if (window.MathJax && MathJax.startup) await MathJax.startup.promise;
  while (document.querySelector("[aria-busy=true]")) await new Promise(done => setTimeout(done, 100));
}
