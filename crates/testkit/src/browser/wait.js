// The body of a function that calls back with {met: value} when `condition` is true, else with {error} at the deadline.
// `condition` and `milliseconds` are declared before it.
const done = arguments[arguments.length - 1];
let error = null;
const check = async () => {
    try {
        const value = await condition();
        error = null;
        if (value) {
            finish({ met: value === true ? true : JSON.parse(JSON.stringify(value)) });
            return true;
        }
    } catch (thrown) {
        error = String(thrown);
    }
    return false;
};
const events = ["animationend", "blur", "change", "click", "focus", "hashchange", "input", "keyup", "load", "offline",
    "online", "pagehide", "pageshow", "popstate", "resize", "scroll", "scrollend", "select", "toggle", "transitionend"];
const changed = new MutationObserver(check);
const finish = result => {
    changed.disconnect();
    clearTimeout(deadline);
    for (const event of events) window.removeEventListener(event, check, true);
    done(result);
};
const deadline = setTimeout(async () => {
    // True now, but nothing announced it: such a test would pass or fail by chance.
    if (await check()) return;
    finish({ error });
}, milliseconds);
changed.observe(document, { attributes: true, characterData: true, childList: true, subtree: true });
for (const event of events) window.addEventListener(event, check, true);
check();
