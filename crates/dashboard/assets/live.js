// Fetches pages and shows them in place of this one: after events, after Back, and what rows and forms ask for. A hidden tab holds no
// connection: browsers allow only six to one server.

import { reportCurrent, reportFailure, reportReached, reportUnreachable, setConnection, showBanner } from "./connection.js";
import { parsePage, showPage } from "./morph.js";
import { setServerTime } from "./times.js";

const MIN_INTERVAL = 400;
const POLL_INTERVAL = 30_000;
const REOPEN_INTERVAL = 1_000;

let source = null;
let lastEventId = null;
let followed = "";
let fetchedAt = 0;
let running = null;
let next = null;
let wantsWhole = false;
let timer = null;
let etag = null;
let opening = null;
// Pages shown so far, and the address of the last one.
let shows = 0;
let shownAddress = "";

const address = () => location.pathname + location.search;
const pinned = () => document.querySelector("[data-pin]")?.dataset.pin;

// Fetches a page and reads it to its end. Throws if there is no complete response.
export async function load(url, options) {
  const response = await fetch(url, { headers: { accept: "text/html" }, cache: "no-cache", ...options });
  setServerTime(response.headers.get("date"));
  const page = parsePage(await response.text());
  // Without `main`, it is not of the dashboard: from a proxy, or from before the routes of pages.
  const isPage = page.getElementById("main") !== null;
  const failure = isPage ? page.body.dataset.error?.replace(/\.$/, "") ?? null : `the server answered with the status ${response.status}`;
  return { response, page, failure, isFromProxy: !isPage && response.status >= 500 };
}

// Why a loaded page cannot take the place of this one: text, label of a button, and what it does.
function obstacle({ response, page }) {
  const reload = () => location.reload();
  const { user, version } = document.body.dataset;
  if (user !== undefined && new URL(response.url).pathname === "/sign-in") {
    const signIn = () => window.open("/sign-in", "_blank", "noopener");
    return ["Your session has ended. Sign in in another tab, then go on here: what you typed is kept.", "Sign in", signIn];
  }
  if (page.body.dataset.user !== user) {
    return ["Another user has signed in here. Reload to see this page as that user.", "Reload", reload];
  }
  if (page.body.dataset.version !== version) {
    return ["ADE was updated. Reload to get the new version of this page.", "Reload", reload];
  }
  return null;
}

// Whether a loaded page can be shown here; otherwise the banner says why not.
export function isShowable(loaded) {
  const found = obstacle(loaded);
  if (found) showBanner(...found);
  return !found;
}

export function show({ page }, wholly) {
  shows += 1;
  shownAddress = address();
  showPage(page, wholly);
  reportCurrent();
  follow();
}

// Shows what the person asked for. Another page, or another request in the inbox, is read from its beginning.
export function enter(loaded, wholly) {
  const [from, pin] = [new URL(shownAddress, location.href).pathname, pinned()];
  show(loaded, wholly);
  if (from !== location.pathname || pin !== pinned()) window.scrollTo({ top: 0, behavior: "instant" });
}

// The last link that somebody opened is the one that counts, however long the others take.
export function cancelOpening() {
  opening?.abort();
  opening = null;
  document.querySelector("[data-js-opening]")?.removeAttribute("data-js-opening");
}

// Opens a link in place. Meanwhile, nothing can be decided about what is still shown.
export async function openInPlace(link) {
  const { href } = link;
  cancelOpening();
  const controller = new AbortController();
  opening = controller;
  document.getElementById("inbox")?.setAttribute("data-js-opening", "");
  let loaded = null;
  try {
    loaded = await load(href, { signal: controller.signal });
  } catch {
    // Another one was opened meanwhile, or there is no connection.
  }
  if (opening !== controller) return;
  cancelOpening();
  if (!loaded || loaded.isFromProxy) {
    reportUnreachable(refresh);
    return;
  }
  reportReached();
  if (loaded.failure !== null) {
    reportFailure(loaded.failure, loaded.response, refresh);
  } else if (isShowable(loaded)) {
    history.replaceState(null, "", href);
    enter(loaded, false);
  }
}

async function fetchCurrent() {
  const wholly = wantsWhole;
  const [url, before] = [address(), shows];
  wantsWhole = false;
  fetchedAt = Date.now();
  let loaded = null;
  try {
    loaded = await load(location.href);
  } catch {
    // Without a connection, or the response broke off.
  }
  if (address() !== url || shows !== before) {
    // Meanwhile another page was opened, or a newer version of this one was shown.
    if (isFollowing()) schedule();
  } else if (!loaded || loaded.isFromProxy) {
    wantsWhole ||= wholly;
    reportUnreachable(refresh);
  } else {
    apply(loaded, wholly);
  }
}

function apply(loaded, wholly) {
  reportReached();
  if (isFollowing()) setConnection(source?.readyState === EventSource.OPEN ? "live" : "connecting");
  const { response, failure } = loaded;
  const isElsewhere = address() !== shownAddress;
  if (response.status === 405) {
    // This page is the answer to a form: there is nothing to fetch at its URL.
    delete document.body.dataset.topics;
    follow();
  } else if (isElsewhere && (failure !== null || obstacle(loaded))) {
    location.reload();
  } else if (failure !== null) {
    reportFailure(failure, response, refresh);
  } else {
    const tag = response.headers.get("etag");
    if (!wholly && !response.redirected && tag !== null && tag === etag) {
      reportCurrent();
    } else if (isShowable(loaded)) {
      show(loaded, wholly);
      etag = tag;
    }
  }
}

// Fetches this page again. `wholly` applies waiting changes of lists too.
export function refresh(wholly = false) {
  wantsWhole ||= wholly === true;
  clearTimeout(timer);
  timer = null;
  if (running) {
    next ??= running.catch(() => {}).then(() => {
      next = null;
      return refresh();
    });
    return next;
  }
  running = fetchCurrent().finally(() => { running = null; });
  return running;
}

function schedule() {
  timer ??= setTimeout(refresh, Math.max(0, fetchedAt + MIN_INTERVAL - Date.now()));
}

// Pages without topics are not renewed by themselves: somebody fills in a form, or reads an answer that exists only once.
const isFollowing = () => Boolean(document.body.dataset.topics) && !document.hidden;

function unfollow() {
  source?.close();
  source = null;
}

function follow() {
  const { topics, task } = document.body.dataset;
  if (!topics) {
    unfollow();
    setConnection(null);
    return;
  }
  if (document.hidden) return;
  const wantedStream = `${topics} ${task ?? ""}`;
  if (source && source.readyState !== EventSource.CLOSED && followed === wantedStream) return;
  unfollow();
  setConnection("connecting");
  followed = wantedStream;
  // A topic, or a single event of one: `lock:broken`.
  const events = topics.split(",").map((name) => (name.includes(":") ? name : `${name}:*`));
  const query = new URLSearchParams({ events: events.join(",") });
  if (task) query.set("task_id", task);
  if (lastEventId) query.set("last_event_id", lastEventId);
  const opened = new EventSource(`/api/v1/events/stream?${query}`);
  source = opened;
  opened.addEventListener("subscribed", (event) => {
    if (event.lastEventId) lastEventId = event.lastEventId;
    setConnection("live");
    // What happened before the subscription is on no stream.
    schedule();
  });
  opened.onmessage = (event) => {
    if (event.lastEventId) lastEventId = event.lastEventId;
    schedule();
  };
  opened.onerror = () => {
    setConnection("connecting");
    // The page tells whether ADE can be reached and the session goes on.
    schedule();
    if (opened.readyState !== EventSource.CLOSED || source !== opened) return;
    // Refused: perhaps the position is too old.
    lastEventId = null;
    setTimeout(() => {
      if (source === opened) follow();
    }, REOPEN_INTERVAL);
  };
}

// What is open stays open: otherwise a request with a higher score would take its place while somebody reads it.
function keepOpen() {
  const url = new URL(location.href);
  const pin = pinned();
  if (!pin || url.searchParams.has("at") || url.searchParams.get("open") === pin) return;
  url.searchParams.set("open", pin);
  history.replaceState(history.state, "", url);
  shownAddress = address();
}

// A page that the browser has kept is readable only while the session goes on: after a sign-out, Back must not show it.
async function checkSession() {
  const { user } = document.body.dataset;
  if (!user) return;
  document.body.style.visibility = "hidden";
  try {
    const response = await fetch("/api/v1/sessions/current", { cache: "no-store" });
    const isOther = response.ok && (await response.json()).user?.user_id !== user;
    if (response.status === 401 || isOther) throw new Error("the session has ended");
    document.body.style.visibility = "";
  } catch {
    location.reload();
  }
}

export function startFollowing() {
  shownAddress = address();
  keepOpen();
  document.addEventListener("ade:shown", keepOpen);
  follow();
  setInterval(() => {
    if (isFollowing()) refresh();
  }, POLL_INTERVAL);
  document.addEventListener("ade:due", () => {
    if (isFollowing()) schedule();
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      unfollow();
    } else {
      follow();
      if (isFollowing()) schedule();
    }
  });
  window.addEventListener("pagehide", unfollow);
  window.addEventListener("pageshow", (event) => {
    if (!event.persisted) return;
    checkSession();
    follow();
    if (isFollowing()) schedule();
  });
  if (performance.getEntriesByType("navigation")[0]?.type === "back_forward") checkSession();
  window.addEventListener("popstate", () => {
    cancelOpening();
    if (address() !== shownAddress) refresh(true);
  });
}
