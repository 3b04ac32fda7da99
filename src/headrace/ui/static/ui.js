// Keys, copying, and what renews a part of its page. Every page works without this.

const one = selector => document.querySelector(selector);

async function copy(button) {
  const text = button.parentElement.querySelector("pre").textContent;
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const range = document.createRange();
    range.selectNodeContents(button.parentElement.querySelector("pre"));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    done = document.execCommand("copy");
  }
  button.textContent = done ? "Copied" : "Select and copy";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

// Renews the part #live of the page from a URL of the same page, and says whether that changed it. The latest request wins.
let asked = 0;
async function renew(url) {
  const mine = ++asked;
  const answer = await fetch(url, { cache: "no-store" });
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (mine !== asked) return false;
  const from = page.getElementById("live"), to = one("#live");
  if (!from || !to) { location.assign(url); return false; }
  if (from.innerHTML === to.innerHTML) return false;
  const focused = document.activeElement;
  const key = focused && to.contains(focused) && (focused.dataset.for ? `[data-for="${CSS.escape(focused.dataset.for)}"]`
    : focused.name ? `[name="${CSS.escape(focused.name)}"]:not([data-for])` : "");
  const open = [...to.querySelectorAll("details")].map(found => found.open);
  to.replaceChildren(...from.childNodes);
  [...to.querySelectorAll("details")].forEach((found, at) => { found.open = open[at] ?? found.open; });
  if (key) to.querySelector(key)?.focus({ preventScroll: true });
  return true;
}

function submitLive(form) {
  const url = `${form.getAttribute("action")}?${new URLSearchParams(new FormData(form))}`;
  history.replaceState(null, "", url);
  renew(url);
}

document.addEventListener("click", event => {
  const button = event.target.closest("[data-copy]");
  if (button) copy(button);
});
document.addEventListener("change", event => {
  const field = event.target, form = field.closest("form[data-live]");
  if (form) submitLive(form);
});
document.addEventListener("input", event => {
  const field = event.target;
  if (field.dataset.for) {
    const number = field.closest("form").elements[field.dataset.for];
    if (number) number.value = field.value;
  }
});
document.addEventListener("submit", event => {
  const form = event.target.closest("form[data-live]");
  if (form) { event.preventDefault(); submitLive(form); }
});

const KEYS = {
  "/": () => one("[data-first]")?.select(),
  j: () => one("[rel=next]")?.click(),
  k: () => one("[rel=prev]")?.click(),
  g: () => one("[data-key=g]")?.click(),
  u: () => one("[data-up]")?.click(),
  c: () => {
    const details = one("#copy");
    if (!details) return;
    details.open = !details.open;
    if (details.open) { details.scrollIntoView({ block: "nearest" }); details.querySelector("button").focus(); }
  },
};
document.addEventListener("keydown", event => {
  const target = event.target;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (target.matches("input:not([type=checkbox]):not([type=range]), select, textarea")) {
    if (event.key === "Escape") target.blur();
    return;
  }
  const act = KEYS[event.key];
  if (act) { event.preventDefault(); act(); }
});

// What a training waits for: looked at every two seconds, while it is seen.
async function renewLive() {
  const pulse = one("#pulse");
  pulse.textContent ||= "· waiting for the next report";
  if (!document.hidden && await renew(location.href)) pulse.textContent = `· renewed ${new Date().toLocaleTimeString()}`;
  setTimeout(renewLive, 2000);
}
if (one("#pulse")) renewLive();
