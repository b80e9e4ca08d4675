"use strict";
// Sorts a table by the column whose header is pressed: first the greatest, then the least.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const header = button.parentElement;
    const column = header.cellIndex;
    const body = header.closest("table").tBodies[0];
    const isDescending = header.getAttribute("aria-sort") !== "descending";
    for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", isDescending ? "descending" : "ascending");
    const compare = (a, b) => {
      const [one, two] = [a.cells[column], b.cells[column]];
      const numbers = Number(one.dataset.n) - Number(two.dataset.n);
      const order = Number.isNaN(numbers) ? one.textContent.localeCompare(two.textContent) : numbers;
      return isDescending ? -order : order;
    };
    body.append(...Array.from(body.rows).sort(compare));
  });
}
