// The approve button: inert for a moment after it appears, and until what must be seen was on the screen. If the task under it
// changes, the next click only says so. The server enforces reason, digest, confirmation and password itself; this only keeps a hand
// from being faster than the eye.

const INERT_MS = 500;

let task;
let version;
let isShown = false;
let hasChanged = false;
let inertUntil = 0;
let timer = null;
const seen = new Set();
const observer = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting) {
      seen.add(entry.target.dataset.seenKey);
      observer.unobserve(entry.target);
    }
  }
  update();
});

const missing = (form) => {
  const reasons = [];
  const { level } = form.dataset;
  const ends = [...document.querySelectorAll("[data-seen-key]")];
  if (level !== "LOW" && ends.some((end) => !seen.has(end.dataset.seenKey))) reasons.push("read the preview to its end");
  if (level === "HIGH" || level === "CRITICAL") {
    const boxes = [...document.querySelectorAll("input[data-viewed]")];
    const left = boxes.filter((box) => !box.checked).length;
    if (left > 0) reasons.push(`mark ${left === 1 ? "1 change" : `${left} changes`} as viewed`);
  }
  for (const field of fieldsThatLack(form)) reasons.push(field.dataset.needed);
  return reasons;
};

export const fieldsThatLack = (form) =>
  [...form.querySelectorAll("[data-needed]")].filter((field) => {
    const wanted = field.dataset.accepts?.split("\n");
    return field.value.trim() === "" || (wanted && !wanted.includes(field.value.trim()));
  });

// A small screen shows the fields only while somebody works in the form.
export function openAt(field) {
  field.form.setAttribute("data-js-open", "");
  field.focus();
}

function update() {
  const form = document.querySelector("form[data-decision]");
  if (!form) {
    // It may come back, with another version of the same task.
    isShown = false;
    return;
  }
  const opened = form.elements.task_id?.value ?? null;
  if (!isShown || opened !== task || form.dataset.version !== version) {
    if (opened !== task) hasChanged = false;
    else if (form.dataset.version !== version) hasChanged = true;
    isShown = true;
    task = opened;
    version = form.dataset.version;
    form.removeAttribute("data-js-open");
    inertUntil = performance.now() + INERT_MS;
    clearTimeout(timer);
    timer = setTimeout(update, INERT_MS);
  }
  for (const end of document.querySelectorAll("[data-seen-key]")) {
    if (!seen.has(end.dataset.seenKey)) observer.observe(end);
  }
  const button = form.querySelector("[data-approve]");
  if (!button) return;
  const reasons = missing(form);
  const isInert = performance.now() < inertUntil;
  // Not `disabled`: it keeps its place in the order of focus, and says why.
  button.toggleAttribute("data-js-inert", isInert || reasons.length > 0);
  button.setAttribute("aria-disabled", String(isInert || reasons.length > 0));
  const hint = form.querySelector("[data-missing]");
  if (!hint) return;
  const change = hasChanged ? "This is not what you looked at before: it has changed. " : "";
  hint.textContent = reasons.length > 0 ? `${change}To approve: ${reasons.join(", ")}.` : change;
}

export function startDecisions() {
  document.addEventListener("click", (event) => {
    const other = event.target.closest("[data-action=reject], [data-action=changes]");
    const reason = other?.form.elements.reason;
    if (reason && reason.value.trim() === "") {
      event.preventDefault();
      openAt(reason);
      const hint = other.form.querySelector("[data-missing]");
      if (hint) hint.textContent = "Give a reason: the author reads it.";
      return;
    }
    const button = event.target.closest("[data-approve]");
    if (!button) return;
    if (button.hasAttribute("data-js-inert") || button.closest("[data-js-opening]")) {
      event.preventDefault();
      const [field] = fieldsThatLack(button.form);
      if (field) openAt(field);
    } else if (hasChanged) {
      event.preventDefault();
      hasChanged = false;
      inertUntil = performance.now() + INERT_MS;
      timer = setTimeout(update, INERT_MS);
      update();
    }
  });
  document.addEventListener("input", update);
  document.addEventListener("change", (event) => {
    if (event.target.matches("input[data-viewed]")) {
      const change = event.target.closest(".change-box")?.querySelector("details.change");
      if (change && event.target.checked) change.open = false;
    }
    update();
  });
  document.addEventListener("toggle", update, true);
  document.addEventListener("ade:shown", update);
  update();
}
