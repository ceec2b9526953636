// Inside Airflow's frame: uses Airflow's color theme, and opens links in the outer window, as the frame must not.
// The page works without this script, and outside the frame.
(() => {
  "use strict";
  let outer = null;
  try {
    outer = window.parent !== window && window.parent.document;
  } catch {
    return; // a parent of another origin
  }
  if (!outer) return;

  const follow = () => {
    document.documentElement.dataset.theme = outer.documentElement.classList.contains("dark") ? "dark" : "light";
  };
  follow();
  new MutationObserver(follow).observe(outer.documentElement, { attributeFilter: ["class"] });

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-airflow], a[data-outside]");
    if (!link || event.defaultPrevented) return;
    event.preventDefault();
    const twin = outer.createElement("a");
    twin.href = link.href;
    if (link.dataset.outside !== undefined || event.ctrlKey || event.metaKey || event.shiftKey) {
      twin.target = "_blank";
      twin.rel = "noopener noreferrer";
    }
    twin.click();
  });
})();
