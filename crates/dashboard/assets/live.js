// Follows events and fetches the page again when something that it shows has changed. Says when the server cannot be reached, and
// since when the page is old. A hidden tab holds no connection: browsers allow only six to one server.

import { parsePage, showPage } from "./morph.js";

const MIN_INTERVAL = 400;
const POLL_INTERVAL = 30_000;
const LOST_AFTER = 2_500;

let source = null;
let lastEventId = null;
let followed = "";
let shownAt = Date.now();
let fetchedAt = 0;
let running = false;
let wanted = false;
let timer = null;
let lostTimer = null;
let etag = null;

const banner = () => document.getElementById("banner");
const connection = () => document.getElementById("connection");

function showBanner(text, action) {
  const element = banner();
  element.replaceChildren(text);
  if (action) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "small-button";
    button.textContent = action.label;
    button.addEventListener("click", action.run);
    element.append(" ", button);
  }
  element.hidden = false;
}

function setConnection(state, text) {
  const element = connection();
  if (!element) return;
  element.hidden = false;
  element.dataset.state = state;
  element.textContent = text;
}

function isLive() {
  setConnection("live", "live");
  banner().hidden = true;
  clearTimeout(lostTimer);
  lostTimer = null;
}

function isLost() {
  if (lostTimer || connection()?.dataset.state === "lost") return;
  lostTimer = setTimeout(() => {
    const since = new Date(shownAt).toLocaleTimeString();
    setConnection("lost", "not connected");
    showBanner(`ADE cannot be reached. This page is as of ${since}; it is tried again every second.`, {
      label: "Try now",
      run: refresh,
    });
  }, LOST_AFTER);
}

// Shows a response as the page, unless it is none or the session has ended. Returns whether it was shown.
export async function showResponse(response, wholly) {
  const text = await response.text();
  const page = parsePage(text);
  if (new URL(response.url).pathname === "/sign-in" && location.pathname !== "/sign-in") {
    showBanner("Your session has ended. Sign in in another tab, then go on here: what you typed is kept.", {
      label: "Sign in",
      run: () => window.open("/sign-in", "_blank", "noopener"),
    });
    return false;
  }
  if (page.body.dataset.version && page.body.dataset.version !== document.body.dataset.version) {
    showBanner("ADE was updated. Reload to get the new version of this page.", {
      label: "Reload",
      run: () => location.reload(),
    });
    return false;
  }
  if (!showPage(page, wholly)) return false;
  shownAt = Date.now();
  follow();
  return true;
}

export async function refresh(wholly = false) {
  wanted = false;
  clearTimeout(timer);
  timer = null;
  if (running) {
    wanted = true;
    return;
  }
  running = true;
  const url = location.href;
  fetchedAt = Date.now();
  try {
    const response = await fetch(url, { headers: { accept: "text/html" }, cache: "no-cache" });
    if (response.status === 405) {
      // This page is the answer to a form: there is nothing to fetch at its URL.
      unfollow();
      followed = "";
      document.body.dataset.topics = "";
    } else if (response.status >= 500) {
      isLost();
    } else if (location.href === url) {
      const tag = response.headers.get("etag");
      if (wholly || tag === null || tag !== etag || response.redirected) {
        const shown = await showResponse(response, wholly);
        if (shown) etag = tag;
      } else {
        shownAt = Date.now();
      }
      if (connection()?.dataset.state === "lost" && source?.readyState === EventSource.OPEN) isLive();
    }
  } catch {
    isLost();
  } finally {
    running = false;
    if (wanted) schedule();
  }
}

function schedule() {
  if (timer) return;
  const wait = Math.max(0, fetchedAt + MIN_INTERVAL - Date.now());
  timer = setTimeout(refresh, wait);
}

function unfollow() {
  source?.close();
  source = null;
}

function follow() {
  const { topics, task } = document.body.dataset;
  if (!topics || document.hidden) return;
  const wantedStream = `${topics} ${task ?? ""}`;
  if (source && source.readyState !== EventSource.CLOSED && followed === wantedStream) return;
  unfollow();
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
    isLive();
    // What happened before the subscription is on no stream.
    schedule();
  });
  opened.onmessage = (event) => {
    if (event.lastEventId) lastEventId = event.lastEventId;
    schedule();
  };
  opened.onerror = () => {
    isLost();
    if (opened.readyState === EventSource.CLOSED && source === opened) {
      // Refused: perhaps the session has ended or the position is too old. The page itself tells.
      lastEventId = null;
      setTimeout(() => {
        if (source === opened) {
          source = null;
          refresh();
          follow();
        }
      }, 1_000);
    }
  };
}

// What is open stays open: otherwise a request with a higher score would take its place while somebody reads it.
function keepOpen() {
  const pinned = document.querySelector("[data-pin]")?.dataset.pin;
  const url = new URL(location.href);
  if (!pinned || url.searchParams.has("at") || url.searchParams.get("open") === pinned) return;
  url.searchParams.set("open", pinned);
  history.replaceState(history.state, "", url);
}

export function startFollowing() {
  keepOpen();
  document.addEventListener("ade:shown", keepOpen);
  if (!document.body.dataset.topics) return;
  setConnection("connecting", "connecting");
  follow();
  setInterval(() => {
    if (!document.hidden) refresh();
  }, POLL_INTERVAL);
  document.addEventListener("ade:due", schedule);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      unfollow();
    } else {
      follow();
      schedule();
    }
  });
  window.addEventListener("pagehide", unfollow);
  window.addEventListener("popstate", () => refresh(true));
}
