// Pages work without this script; it refreshes live parts and marks all rows of a table.
"use strict";

const seconds = Number(document.body.dataset.refresh);

// Load the page again and exchange its live parts, unless somebody is at work in one of them.
async function refresh() {
  if (document.hidden) return;
  let text;
  try {
    const answer = await fetch(location.href, { headers: { "X-Refresh": "1" }, redirect: "error" });
    if (answer.status === 401) location.reload();
    if (!answer.ok) return;
    text = await answer.text();
  } catch {
    return; // the console is away; the ages on the page show it
  }
  const fresh = new DOMParser().parseFromString(text, "text/html");
  for (const part of document.querySelectorAll("[data-live][id]")) {
    const replacement = fresh.getElementById(part.id);
    if (replacement && !part.contains(document.activeElement)) part.replaceWith(replacement);
  }
}

if (seconds > 0) setInterval(refresh, seconds * 1000);

for (const all of document.querySelectorAll("input[data-all]")) {
  all.addEventListener("change", () => {
    for (const box of document.querySelectorAll(`input[name="${all.dataset.all}"]`)) {
      box.checked = all.checked;
    }
  });
}
