// Lists: rows that are opened beside them, rows that wait behind a button, and selections.

import { openInPlace, refresh } from "./live.js";

// Opens a row beside its list, and keeps the focus in the list.
export function openRow(link) {
  link.focus();
  return openInPlace(link);
}

function showWaiting(list, { added, gone }) {
  const wrapper = list.closest("[data-list-frame]") ?? list.parentElement;
  let button = wrapper.querySelector("[data-js-waiting]");
  if (added === 0 && gone === 0) {
    button?.remove();
    return;
  }
  if (!button) {
    button = document.createElement("button");
    button.type = "button";
    button.className = "pending-changes";
    button.setAttribute("data-js-waiting", "");
    button.addEventListener("click", () => loadWaiting());
    list.before(button);
  }
  const parts = [];
  if (added) parts.push(`${added} new`);
  if (gone) parts.push(`${gone} gone`);
  button.textContent = `${parts.join(", ")}: show`;
  document.getElementById("announce").textContent = parts.join(", ");
}

export async function loadWaiting() {
  const active = document.activeElement?.closest("[data-row]")?.dataset.row;
  for (const button of document.querySelectorAll("[data-js-waiting]")) button.remove();
  await refresh(true);
  if (active) document.querySelector(`[data-row="${CSS.escape(active)}"] a`)?.focus({ preventScroll: true });
}

function updateSelection() {
  for (const form of document.querySelectorAll("form[data-batch]")) {
    const selected = form.querySelectorAll("[data-row] input[type=checkbox]:checked").length;
    const bar = form.querySelector("[data-batch-bar]");
    if (!bar) continue;
    bar.hidden = selected === 0;
    bar.querySelector("[data-batch-count]").textContent = `${selected} selected`;
    const all = bar.querySelector("[data-select-all]");
    all.checked = selected > 0 && !form.querySelector("[data-row] input[type=checkbox]:not(:checked, :disabled)");
    all.indeterminate = selected > 0 && !all.checked;
  }
}

export function startLists() {
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-open]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
    if (window.matchMedia("(max-width: 980px)").matches) return;
    event.preventDefault();
    openRow(link);
  });
  document.addEventListener("ade:waiting", (event) => showWaiting(event.target, event.detail));
  document.addEventListener("ade:shown", () => {
    if (!document.querySelector("[data-list] [data-gone]")) {
      for (const button of document.querySelectorAll("[data-js-waiting]")) {
        if (!button.textContent.includes("new")) button.remove();
      }
    }
    updateSelection();
  });
  document.addEventListener("change", (event) => {
    const all = event.target.closest("[data-select-all]");
    if (all) {
      for (const box of all.form.querySelectorAll("[data-row] input[type=checkbox]:not(:disabled)")) box.checked = all.checked;
    }
    updateSelection();
  });
  updateSelection();
}
