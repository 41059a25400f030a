// Names and keyboard access that the theme leaves out: the search, and tables that scroll sideways.
document.querySelectorAll(".md-search").forEach((search) => search.setAttribute("aria-label", "Search"));
window.addEventListener("load", () =>
  document.querySelectorAll(".md-typeset__scrollwrap").forEach((table) => table.setAttribute("tabindex", "0")),
);
