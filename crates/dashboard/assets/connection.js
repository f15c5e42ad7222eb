// Says how current the page is: the indicator in the bar, and a banner about what keeps it from being renewed.

const LOST_AFTER = 2_500;
const RETRY_INTERVAL = 2_000;

let currentAt = Date.now();
let isLost = false;
let lostTimer = null;
let retryTimer = null;

const time = () => new Date(currentAt).toLocaleTimeString();

export function showBanner(text, label, run) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "small-button";
  button.textContent = label;
  button.addEventListener("click", run);
  const banner = document.getElementById("banner");
  banner.replaceChildren(text, " ", button);
  banner.hidden = false;
}

// `state` is null for pages that follow nothing.
export function setConnection(state) {
  const element = document.getElementById("connection");
  if (!element || (isLost && state !== null && state !== "lost")) return;
  element.hidden = state === null;
  element.dataset.state = state ?? "off";
  element.textContent = state === "lost" ? "not connected" : state ?? "";
}

function retry(refresh, wait = RETRY_INTERVAL) {
  retryTimer ??= setTimeout(() => {
    retryTimer = null;
    if (!document.hidden) refresh();
  }, wait);
}

// No response. A short interruption, such as a restart, is not worth a banner.
export function reportUnreachable(refresh) {
  retry(refresh);
  if (isLost) return;
  lostTimer ??= setTimeout(() => {
    lostTimer = null;
    setConnection("lost");
    isLost = true;
    showBanner(`ADE cannot be reached. This page is as of ${time()}; it is tried again every 2 seconds.`, "Try now", refresh);
  }, LOST_AFTER);
}

// Any response at all.
export function reportReached() {
  clearTimeout(lostTimer);
  clearTimeout(retryTimer);
  lostTimer = null;
  retryTimer = null;
  isLost = false;
}

// A response that says why there is no page. What is shown stays readable.
export function reportFailure(text, response, refresh) {
  reportReached();
  showBanner(`This page is as of ${time()} and could not be renewed: ${text}.`, "Try now", refresh);
  if (response.status === 429 || response.status >= 500) {
    retry(refresh, Number(response.headers.get("retry-after")) * 1_000 || RETRY_INTERVAL);
  }
}

export function reportCurrent() {
  currentAt = Date.now();
  document.getElementById("banner").hidden = true;
}
