// Puts a search field above the table of model types: rows that hold every word are shown.
(function () {
  "use strict";
  const section = document.getElementById("the-types");
  if (!section) return;
  const rows = [...section.querySelectorAll("tbody tr")].map((row) => ({ row, text: row.textContent.toLowerCase() }));
  const search = document.createElement("p");
  search.innerHTML = '<label>Find a type <input type="search" placeholder="llama, or refused" autocomplete="off"></label> <span role="status"></span>';
  const [field, status] = search.querySelectorAll("input, [role]");
  function show() {
    const words = field.value.toLowerCase().split(/\s+/);
    let shown = 0;
    for (const { row, text } of rows) {
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    status.textContent = `${shown} of ${rows.length} types`;
  }
  field.addEventListener("input", show);
  section.querySelector("h2").after(search);
  show();
})();
