// Searches, checks and files that grow: server-sent events, shown as text.
const one = (selector, within = document) => within.querySelector(selector);

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function listen(url, handlers, lost) {
  const source = new EventSource(url);
  for (const [kind, handle] of Object.entries(handlers)) {
    source.addEventListener(kind, event => handle(JSON.parse(event.data)));
  }
  source.onerror = () => { if (lost) { source.close(); lost(); } };
  return source;
}

const hitsOf = many => many === 0 ? "no hits" : many === 1 ? "1 hit" : `${number(many)} hits`;
const number = value => value.toLocaleString("en-US");

function search(place) {
  const bar = one("progress", place), said = one("[data-said]", place), hits = one("[data-hits]", place);
  const cancel = one("[data-cancel]", place), { page, path, noun } = place.dataset;
  let until = 0, many = 0;
  const end = text => { source.close(); said.textContent = text; cancel.remove(); };
  const source = listen(place.dataset.events, {
    SearchHit(hit) {
      const item = element("li"), link = element("a", hit.key || `${noun} ${number(hit.number)}`);
      link.href = `${page}?${new URLSearchParams({ path, number: hit.number })}`;
      const text = element("span", undefined, "text");
      text.append(hit.before, element("mark", hit.match), hit.after);
      item.append(link, element("span", hit.part === "tokens" ? " " : ` ${hit.part} `, "soft"), text);
      hits.append(item);
      many += 1;
    },
    SearchProgress(found) {
      until = found.until;
      bar.value = found.total ? found.until / found.total : 1;
      said.textContent = `${number(found.until - found.first)} of ${number(found.total - found.first)} ${noun}s, ${hitsOf(many)}`;
      if (!found.is_done) return;
      end(`${found.why}; ${hitsOf(many)} in ${noun}s ${number(found.first)} to ${number(Math.max(found.first, found.until - 1))}`);
      place.dataset.done = "yes";
      if (found.until < found.total) {
        const more = element("a", `Search on from ${noun} ${number(found.until)}`);
        more.href = `search?${new URLSearchParams({ path, q: place.dataset.text, first: found.until })}`;
        more.rel = "next";
        place.append(more);
      }
    },
    failed(found) { end(found.message); said.className = "bad"; },
  }, () => end(`the connection was lost at ${noun} ${number(until)}`));
  cancel.addEventListener("click", () => end(`cancelled at ${noun} ${number(until)}; ${hitsOf(many)}`));
}

function check(place) {
  const start = one("[data-start]", place), cancel = one("[data-cancel]", place), line = one(".progress", place);
  const bar = one("progress", place), said = one("[data-said]", place), verdict = one("[data-verdict]", place);
  start.addEventListener("click", () => {
    start.hidden = true; cancel.hidden = false; line.hidden = false; verdict.hidden = true;
    const end = () => { source.close(); start.hidden = false; start.textContent = "Check again"; cancel.hidden = true; };
    const source = listen(place.dataset.events, {
      progress(found) {
        if (found.total) bar.value = found.done / found.total; else bar.removeAttribute("value");
        said.textContent = [found.phase, found.text].filter(Boolean).join(": ");
      },
      verdict(found) {
        end();
        line.hidden = true; verdict.hidden = false;
        verdict.textContent = found.lines.join("\n") || (found.ok ? "no faults" : "faults");
        verdict.classList.toggle("bad", !found.ok);
        place.dataset.done = found.ok ? "ok" : "faults";
      },
      failed(found) { end(); said.textContent = found.message; },
    }, () => { end(); said.textContent = "the connection was lost"; });
    cancel.onclick = () => { end(); said.textContent = "cancelled"; };
  });
}

function live(pulse, renew) {
  const since = () => {
    const time = new Date().toLocaleTimeString();
    pulse.textContent = `· renewed ${time}`;
  };
  listen(pulse.dataset.events, {
    ready() { pulse.textContent = "· waiting for the next report"; },
    async grown() { await renew(location.href); since(); },
  });
}

export function begin(renew) {
  const searching = one("#search"), checking = one("#check"), pulse = one("#pulse");
  if (searching) search(searching);
  if (checking) check(checking);
  if (pulse) live(pulse, renew);
}
