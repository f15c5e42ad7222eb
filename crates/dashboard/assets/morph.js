// Makes the page equal to a newer version of itself, in place: focus, typed text, open details, selections and scroll positions stay.
// Never moves rows of a list while somebody points at it, works in it or has selected some: those changes wait behind a button.

const parser = new DOMParser();
const policy = window.trustedTypes?.createPolicy("ade", { createHTML: (text) => text });

export function parsePage(text) {
  return parser.parseFromString(policy ? policy.createHTML(text) : text, "text/html");
}

let showsWholly = false;

// A form is the same one as long as it sends to the same place.
function formKey(form) {
  const action = form.getAttribute("action");
  const isSame = (other) => other.tagName === "FORM" && other.getAttribute("action") === action;
  return action && [...form.parentElement.children].filter(isSame).length === 1 ? `form ${action}` : null;
}

function keyOf(node) {
  if (node.nodeType !== Node.ELEMENT_NODE) return null;
  return node.dataset.row || node.getAttribute("id") || (node.tagName === "FORM" ? formKey(node) : null);
}

// What a person did to a control wins over what the server knows.
function isTouched(control) {
  if (control === document.activeElement) return true;
  if (control.type === "checkbox" || control.type === "radio") return control.checked !== control.defaultChecked;
  if (control.tagName === "SELECT") return [...control.options].some((option) => option.selected !== option.defaultSelected);
  return control.value !== control.defaultValue;
}

function morphAttributes(from, to) {
  for (const { name } of [...from.attributes]) {
    // Owned by the script or by the person.
    if (!to.hasAttribute(name) && !name.startsWith("data-js") && !(name === "open" && from.tagName === "DETAILS")) {
      from.removeAttribute(name);
    }
  }
  for (const { name, value } of [...to.attributes]) {
    if (name === "open" && from.tagName === "DETAILS") continue;
    if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
}

export function isHeld(list) {
  return list.matches(":hover") || list.contains(document.activeElement) || list.querySelector("input:checked") !== null;
}

// Rows stay where they are. New ones are counted, and what is gone is marked.
function morphHeldList(from, to) {
  const wanted = new Map([...to.children].map((row) => [keyOf(row), row]));
  const present = new Set();
  for (const row of [...from.children]) {
    const newer = wanted.get(keyOf(row));
    if (newer) morphElement(row, newer);
    row.toggleAttribute("data-gone", !newer);
    present.add(keyOf(row));
  }
  const added = [...wanted.keys()].filter((key) => !present.has(key)).length;
  const gone = [...from.children].filter((row) => row.hasAttribute("data-gone")).length;
  from.dispatchEvent(new CustomEvent("ade:waiting", { bubbles: true, detail: { added, gone } }));
}

// Moves a child forward to a place. One with the focus would lose it: then those in between are moved behind it.
function moveTo(place, child) {
  const follows = place && place.compareDocumentPosition(child) & Node.DOCUMENT_POSITION_FOLLOWING;
  if (!follows || !child.contains(document.activeElement)) {
    child.parentNode.insertBefore(child, place);
    return;
  }
  const end = child.nextSibling;
  for (let node = place; node !== child;) {
    const following = node.nextSibling;
    child.parentNode.insertBefore(node, end);
    node = following;
  }
}

function morphChildren(from, to) {
  if (from.hasAttribute("data-list") && isHeld(from) && !from.hasAttribute("data-js-load")) {
    morphHeldList(from, to);
    return;
  }
  const keyed = new Map();
  for (const child of from.children) {
    const key = keyOf(child);
    if (key) keyed.set(key, child);
  }
  const wantedKeys = new Set([...to.children].map(keyOf).filter(Boolean));
  let place = from.firstChild;
  for (const wanted of [...to.childNodes]) {
    const key = keyOf(wanted);
    let match = key ? keyed.get(key) : null;
    if (!match && !key) {
      // The next child without a key of the same kind; elements with a key that is still wanted are not passed.
      let candidate = place;
      while (candidate && candidate.nodeType === Node.ELEMENT_NODE && keyOf(candidate) && !wantedKeys.has(keyOf(candidate))) {
        candidate = candidate.nextSibling;
      }
      if (candidate && !keyOf(candidate) && candidate.nodeName === wanted.nodeName) match = candidate;
    }
    if (match) {
      while (place && place !== match && !keyOf(place) === !keyOf(match) && !wantedKeys.has(keyOf(place))) {
        const next = place.nextSibling;
        if (place.contains?.(document.activeElement)) break;
        place.remove();
        place = next;
      }
      if (match !== place) moveTo(place, match);
      else place = place.nextSibling;
      morphNode(match, wanted);
    } else {
      from.insertBefore(document.importNode(wanted, true), place);
    }
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

function morphNode(from, to) {
  if (from.nodeType === Node.ELEMENT_NODE) morphElement(from, to);
  else if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
}

// The revision that somebody edits stays that of what they began with, so that the server can tell them of a change meanwhile.
const isEditedRevision = (node) =>
  node.matches("input[type=hidden][name=revision]") &&
  [...(node.form?.elements ?? [])].some((control) => control.matches("input:not([type=hidden]), textarea, select") && isTouched(control));

// A form that was refused keeps the reason and what was typed, until it is sent again or the page is left. One that is on its way, or has
// failed to arrive, keeps its key too: sent again, it is the same request.
function isKept(from, to) {
  if (from.tagName !== "FORM" || from.getAttribute("action") !== to.getAttribute("action")) return false;
  if (from.hasAttribute("data-js-sending") || from.querySelector("[data-js-failed]")) return true;
  return !showsWholly && from.querySelector("[data-alert]") !== null;
}

function morphElement(from, to) {
  if (from.isEqualNode(to) || from.hasAttribute("data-js-keep") || isEditedRevision(from) || isKept(from, to)) return;
  const touched = from.matches("input, textarea, select") && from.type !== "hidden" && isTouched(from);
  const { value, checked } = from;
  morphAttributes(from, to);
  if (touched) {
    if ("checked" in from && from.type !== "text") from.checked = checked;
    if (from.tagName === "INPUT" && from.type !== "checkbox" && from.type !== "radio") from.value = value;
    return;
  }
  if (from.tagName === "INPUT") {
    from.value = to.value;
    from.checked = to.defaultChecked;
    return;
  }
  if (from.tagName === "TIME" && from.hasAttribute("data-relative")) {
    if (!from.firstChild) from.append(to.textContent);
    return;
  }
  if (from.tagName === "TEXTAREA") {
    from.defaultValue = to.defaultValue;
    from.value = to.defaultValue;
    return;
  }
  morphChildren(from, to);
}

// Shows a fetched version of the page. `wholly` applies waiting changes of lists too.
export function showPage(page, wholly = false) {
  const main = document.getElementById("main");
  const newer = page.getElementById("main");
  if (!main || !newer) return;
  showsWholly = wholly;
  const lists = wholly ? [...main.querySelectorAll("[data-list]")] : [];
  for (const list of lists) list.setAttribute("data-js-load", "");
  morphElement(main, newer);
  for (const list of lists) list.removeAttribute("data-js-load");
  const [badge, newerBadge] = [document.getElementById("waiting"), page.getElementById("waiting")];
  if (badge && newerBadge) morphElement(badge, newerBadge);
  document.title = page.title;
  for (const name of ["topics", "task"]) {
    if (page.body.dataset[name] === undefined) delete document.body.dataset[name];
    else document.body.dataset[name] = page.body.dataset[name];
  }
  document.dispatchEvent(new CustomEvent("ade:shown"));
}
