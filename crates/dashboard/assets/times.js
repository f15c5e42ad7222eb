// Keeps relative times and countdowns current, in the words that the server uses.

function duration(seconds) {
  const two = (large, unit, small, smallUnit) => (small === 0 ? `${large} ${unit}` : `${large} ${unit} ${small} ${smallUnit}`);
  const [minutes, hours, days] = [60, 3_600, 86_400].map((unit) => Math.floor(seconds / unit));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3_600) return two(minutes, "min", minutes < 10 ? seconds % 60 : 0, "s");
  if (seconds < 86_400) return two(hours, "h", hours < 10 ? minutes % 60 : 0, "min");
  return two(days, "d", days < 10 ? hours % 24 : 0, "h");
}

function rough(seconds) {
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3_600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.floor(seconds / 3_600)} h`;
  return `${Math.floor(seconds / 86_400)} d`;
}

// The clock of this machine may differ from that of the server. A page that the browser kept says when it was made, not what time it is.
const isKept = performance.getEntriesByType("navigation")[0]?.type === "back_forward";
let skew = isKept ? 0 : Date.parse(document.body.dataset.now ?? "") - Date.now() || 0;
// More than a response takes on its way, and than `Date` rounds off.
const MAX_DEVIATION = 2_000;

// Takes the time from the header `Date` of a response that has just arrived.
export function setServerTime(date) {
  const deviation = Date.parse(date ?? "") + 500 - Date.now() - skew;
  if (Math.abs(deviation) > MAX_DEVIATION) skew += deviation;
}

const secondsUntil = (element) => Math.floor(Date.parse(element.dateTime) / 1_000) - Math.floor((Date.now() + skew) / 1_000);

function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function tick() {
  for (const element of document.querySelectorAll("time[data-countdown]")) {
    const left = secondsUntil(element);
    write(element, left >= 0 ? duration(left) : `overdue by ${duration(-left)}`);
    // What has ended may have been renewed without an event.
    if (left < 0 && !element.hasAttribute("data-js-due")) document.dispatchEvent(new CustomEvent("ade:due"));
    element.toggleAttribute("data-js-due", left < 0);
  }
  for (const element of document.querySelectorAll("time[data-relative]")) {
    const left = secondsUntil(element);
    if (Math.abs(left) < 5) write(element, "now");
    else write(element, left < 0 ? `${rough(-left)} ago` : `in ${rough(left)}`);
  }
}

export function startTimes() {
  tick();
  setInterval(tick, 1_000);
  document.addEventListener("ade:shown", tick);
}
