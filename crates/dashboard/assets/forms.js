// Sends forms without leaving the page: nothing typed is lost if the server cannot be reached or refuses. The server answers with a
// page in any case: another one after a success, the same one with the reason after a refusal.

import { showResponse } from "./live.js";

const OFFLINE = "Not sent: ADE cannot be reached. Nothing was changed, and what you typed is kept. Try again.";

function showFailure(form, text) {
  let alert = form.querySelector("[data-js-offline]");
  if (!alert) {
    alert = document.createElement("div");
    alert.className = "alert";
    alert.setAttribute("role", "alert");
    alert.setAttribute("data-js-offline", "");
    form.prepend(alert);
  }
  alert.textContent = text;
}

async function send(form, submitter) {
  const body = new URLSearchParams(new FormData(form, submitter));
  const action = submitter?.getAttribute("formaction") || form.getAttribute("action") || location.href;
  const pending = submitter ?? form.querySelector("button[type=submit]");
  pending?.setAttribute("data-pending", "");
  form.setAttribute("data-js-sending", "");
  try {
    const response = await fetch(action, { method: "POST", body, headers: { accept: "text/html" } });
    form.querySelector("[data-js-offline]")?.remove();
    if (response.redirected) history.pushState(null, "", response.url);
    // A form that was sent is not what somebody still types.
    if (response.redirected) form.reset();
    document.activeElement?.blur();
    const shown = await showResponse(response, true);
    if (!shown) return;
    const alert = document.querySelector("[data-alert]");
    if (alert) alert.scrollIntoView({ block: "nearest" });
    else if (response.redirected) document.getElementById("main").focus({ preventScroll: true });
    const text = document.querySelector("[data-alert], [data-notice]")?.textContent;
    if (text) document.getElementById("announce").textContent = text.trim();
  } catch {
    showFailure(form, OFFLINE);
  } finally {
    pending?.removeAttribute("data-pending");
    form.removeAttribute("data-js-sending");
  }
}

export function startForms() {
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.method !== "post" || form.hasAttribute("data-native") || event.defaultPrevented) return;
    event.preventDefault();
    if (form.hasAttribute("data-js-sending")) return;
    send(form, event.submitter);
  });
  // Selects that filter apply at once.
  document.addEventListener("change", (event) => {
    if (event.target.closest("form[data-filter]") && event.target.matches("select")) event.target.form.requestSubmit();
  });
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const text = document.getElementById(button.dataset.copy)?.textContent ?? "";
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select it and copy";
    }
  });
}

// Menus close when the pointer or focus goes elsewhere.
export function startMenus() {
  const closeOthers = (target) => {
    for (const menu of document.querySelectorAll("details[data-menu][open]")) {
      if (!menu.contains(target)) menu.open = false;
    }
  };
  document.addEventListener("click", (event) => closeOthers(event.target));
  document.addEventListener("focusin", (event) => closeOthers(event.target));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const menu of document.querySelectorAll("details[data-menu][open]")) {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
  });
}
