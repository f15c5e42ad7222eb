// Keyboard shortcuts. None decides by itself: letters move, open and focus; a decision is a button that is pressed. They are off in
// fields, and can be switched off.

import { fieldsThatLack, openAt } from "./decide.js";
import { loadWaiting, openRow } from "./lists.js";

const STORE = "ade-keys";
const isOff = () => {
  try {
    return localStorage.getItem(STORE) === "off";
  } catch {
    return false;
  }
};

const HELP = [
  ["J, K", "next, previous row"],
  ["Enter", "open the row"],
  ["X", "select the row"],
  ["A", "go to Approve"],
  ["R", "go to the reason, to reject"],
  ["C", "go to the reason, to request changes"],
  ["D", "delegate"],
  ["[, ]", "previous, next change"],
  ["V", "mark the change as viewed"],
  [".", "show new rows"],
  ["/", "filter"],
  ["G, then a letter", "go to: I inbox, T tasks, L locks, A agents, P policies, D delegations, Y activity, U audit, K keyspace, S settings"],
  ["Ctrl+Enter", "send what you typed"],
  ["?", "this list"],
  ["Esc", "close, leave a field"],
];

let afterG = false;
let intent = null;

function help() {
  let dialog = document.getElementById("help");
  if (!dialog) {
    dialog = document.createElement("dialog");
    dialog.id = "help";
    dialog.setAttribute("aria-label", "Keyboard shortcuts");
    const title = document.createElement("h1");
    title.textContent = "Keyboard shortcuts";
    const list = document.createElement("dl");
    list.className = "keys";
    for (const [key, text] of HELP) {
      const term = document.createElement("dt");
      const name = document.createElement("kbd");
      name.textContent = key;
      term.append(name);
      const description = document.createElement("dd");
      description.textContent = text;
      description.style.margin = "0";
      list.append(term, description);
    }
    const label = document.createElement("label");
    label.className = "inline";
    const box = document.createElement("input");
    box.type = "checkbox";
    box.checked = !isOff();
    box.addEventListener("change", () => {
      try {
        localStorage.setItem(STORE, box.checked ? "on" : "off");
      } catch {
        // Without storage they are on again with the next page.
      }
    });
    label.append(box, "Shortcuts are on");
    const close = document.createElement("button");
    close.type = "button";
    close.textContent = "Close";
    close.addEventListener("click", () => dialog.close());
    dialog.append(title, list, label, document.createElement("br"), document.createElement("br"), close);
    document.body.append(dialog);
  }
  if (!dialog.open) dialog.showModal();
}

const rows = () => [...document.querySelectorAll("[data-list] [data-row]")].filter((row) => row.querySelector("a"));

function currentRow() {
  return document.activeElement?.closest("[data-row]") ?? document.querySelector("[data-row][aria-current=true]");
}

function move(step) {
  const all = rows();
  if (all.length === 0) return;
  const at = all.indexOf(currentRow());
  const next = all[Math.min(all.length - 1, Math.max(0, at === -1 ? (step > 0 ? 0 : all.length - 1) : at + step))];
  const link = next.querySelector("a");
  link.scrollIntoView({ block: "nearest" });
  if (link.hasAttribute("data-open")) openRow(link);
  else link.focus();
}

function moveChange(step) {
  const changes = [...document.querySelectorAll("details.change > summary")];
  if (changes.length === 0) return;
  const at = changes.findIndex((summary) => summary.parentElement.contains(document.activeElement));
  const next = changes[(at + step + changes.length) % changes.length];
  next.parentElement.open = true;
  next.focus();
}

// What is shown is not what was chosen yet.
const isOpening = () => document.querySelector("[data-js-opening]") !== null;

const INTENTS = { approve: "approves", reject: "rejects", changes: "requests changes" };

// What Ctrl+Enter in a field of the decision does, shown beside the buttons.
function setIntent(action) {
  intent = action;
  const hint = document.querySelector("[data-intent]");
  if (hint) hint.textContent = action ? `Ctrl+Enter ${INTENTS[action]}.` : "";
}

function focusReason(action) {
  const reason = document.querySelector("form[data-decision] textarea[name=reason]");
  if (!reason || isOpening()) return;
  openAt(reason);
  setIntent(action);
}

// To what the approval still lacks, and to its button once it lacks nothing: what is typed next must not be taken for other keys.
function focusApproval() {
  const form = document.querySelector("form[data-decision]");
  const button = form?.querySelector("[data-approve]");
  if (!button || isOpening()) return;
  const unviewed = ["HIGH", "CRITICAL"].includes(form.dataset.level) && document.querySelector("input[data-viewed]:not(:checked)");
  const [field] = fieldsThatLack(form);
  if (unviewed) {
    unviewed.focus();
  } else if (field) {
    openAt(field);
    setIntent("approve");
  } else {
    button.focus();
  }
}

function focusFirst(selector) {
  if (isOpening()) return;
  const element = document.querySelector(selector);
  if (!element) return;
  const details = element.closest("details");
  if (details) details.open = true;
  element.focus();
}

const ACTIONS = {
  j: () => move(1),
  k: () => move(-1),
  x: () => currentRow()?.querySelector("input[type=checkbox]")?.click(),
  a: focusApproval,
  r: () => focusReason("reject"),
  c: () => focusReason("changes"),
  d: () => focusFirst("[data-delegate] select, [data-delegate] input:not([type=hidden])"),
  "[": () => moveChange(-1),
  "]": () => moveChange(1),
  v: () => {
    const box = document.activeElement?.closest(".change-box")?.querySelector("input[data-viewed]");
    (box ?? document.querySelector("input[data-viewed]:not(:checked)"))?.click();
  },
  ".": () => loadWaiting(),
  "/": () => focusFirst("form[data-filter] input:not([type=hidden])"),
  "?": help,
};

const isField = (element) => element?.closest?.("input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable], dialog");

export function startKeys() {
  const button = document.querySelector("[data-help]");
  if (button) {
    button.hidden = false;
    button.addEventListener("click", help);
  }
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.isComposing) return;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      const form = event.target.closest("form");
      if (!form) return;
      const wanted = form.matches("[data-decision]") ? form.querySelector(`[data-action="${intent}"]`) : form.querySelector("button[type=submit]:not([disabled])");
      if (wanted) {
        event.preventDefault();
        wanted.click();
      }
      return;
    }
    if (event.key === "Escape" && isField(event.target)) {
      event.target.blur();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || isField(event.target) || isOff()) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (afterG) {
      afterG = false;
      const link = document.querySelector(`.nav [data-key="${CSS.escape(key)}"]`);
      if (link) {
        event.preventDefault();
        location.assign(link.href);
      }
      return;
    }
    if (key === "g") {
      afterG = true;
      setTimeout(() => { afterG = false; }, 1_500);
      return;
    }
    const action = ACTIONS[key];
    if (action) {
      event.preventDefault();
      action();
    }
  });
  document.addEventListener("focusout", (event) => {
    if (intent && !event.relatedTarget) setIntent(null);
  });
}
