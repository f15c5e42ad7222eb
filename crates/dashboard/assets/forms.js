// Sends forms without leaving the page: nothing typed is lost if the server cannot be reached or refuses. The server answers with a
// page in any case: another one after a success, the same one with the reason after a refusal.

import { reportReached } from "./connection.js";
import { cancelOpening, enter, isShowable, load } from "./live.js";

const UNANSWERED = "ADE did not answer: this may have been done, or not. What you typed is kept. Try again: it is not done twice.";

// As long as a form says that it failed, it keeps what was typed and its key, so that sending it again is the same request.
function showFailure(form, text) {
  let alert = form.querySelector("[data-js-failed]");
  if (!alert) {
    alert = document.createElement("div");
    alert.className = "alert";
    alert.setAttribute("role", "alert");
    alert.setAttribute("data-js-failed", "");
    form.prepend(alert);
  }
  alert.textContent = text;
}

async function post(form, submitter) {
  const body = new URLSearchParams(new FormData(form, submitter));
  const action = submitter?.getAttribute("formaction") || form.getAttribute("action") || location.href;
  const pending = submitter ?? form.querySelector("button[type=submit]");
  pending?.setAttribute("data-pending", "");
  form.setAttribute("data-js-sending", "");
  try {
    return await load(action, { method: "POST", body });
  } catch {
    return null;
  } finally {
    pending?.removeAttribute("data-pending");
    form.removeAttribute("data-js-sending");
  }
}

async function send(form, submitter) {
  cancelOpening();
  const loaded = await post(form, submitter);
  form.querySelector("[data-js-failed]")?.remove();
  if (!loaded || loaded.isFromProxy) {
    showFailure(form, UNANSWERED);
    return;
  }
  reportReached();
  const { response, failure } = loaded;
  if (failure !== null) {
    // It was done if the answer leads to another page: only that page failed.
    if (response.redirected) location.assign(response.url);
    else showFailure(form, `ADE answered: ${failure}. What you typed is kept.`);
    return;
  }
  if (!isShowable(loaded)) return;
  if (response.redirected) {
    history.pushState(null, "", response.url);
    // A form that was sent is not what somebody still types.
    form.reset();
  }
  document.activeElement?.blur();
  enter(loaded, true);
  const alert = document.querySelector("[data-alert]");
  if (alert) alert.scrollIntoView({ block: "nearest" });
  else if (response.redirected) document.getElementById("main").focus({ preventScroll: true });
  const text = document.querySelector("[data-alert], [data-notice]")?.textContent;
  if (text) document.getElementById("announce").textContent = text.trim();
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
