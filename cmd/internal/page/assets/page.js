// Keeps a view up to date, and adds what only the reader's machine knows. Without it everything can
// be read, and is loaded anew every ten seconds.
'use strict';
(() => {
  const body = document.body, byId = id => document.getElementById(id);
  const skew = Date.now() - Number(body.dataset.now); // the reader's clock may be another
  const now = () => Date.now() - skew;
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || 'UTC';
  const local = new Intl.DateTimeFormat('sv-SE', {dateStyle: 'short', timeStyle: 'medium', timeZone: zone});
  // A formatter takes a millisecond to make, and a page has hundreds of times.
  const zones = new Intl.DateTimeFormat('en', {timeZone: zone, timeZoneName: 'short'}), shorts = new Map();
  function short(d) {
    const hour = Math.floor(d / 3600e3);
    if (!shorts.has(hour)) shorts.set(hour, (zones.formatToParts(d).find(p => p.type === 'timeZoneName') || {value: zone}).value);
    return shorts.get(hour);
  }

  // times says each time in the reader's zone too.
  function times(root) {
    if (zone === 'UTC') return;
    for (const t of root.querySelectorAll('time[datetime]')) {
      const d = new Date(t.getAttribute('datetime')), utc = d.toISOString().slice(0, 19).replace('T', ' ');
      const here = local.format(d);
      if (here === utc || t.querySelector('.local')) continue;
      const s = document.createElement('span');
      s.className = 'local';
      s.textContent = ' (' + (here.slice(0, 10) === utc.slice(0, 10) ? here.slice(11) : here) + ' ' + short(d) + ')';
      t.append(s);
    }
  }

  function age(ms) {
    const s = Math.max(0, Math.floor(ms / 1000)), two = n => String(n).padStart(2, '0');
    if (s < 60) return s + ' s';
    if (s < 3600) return Math.floor(s / 60) + ' min ' + two(s % 60) + ' s';
    if (s < 48 * 3600) return Math.floor(s / 3600) + ' h ' + two(Math.floor(s / 60) % 60) + ' min';
    return Math.floor(s / 86400) + ' d ' + two(Math.floor(s / 3600) % 24) + ' h';
  }
  function ages() {
    for (const e of document.querySelectorAll('.age[data-since]')) {
      const text = age(now() - Number(e.dataset.since));
      if (e.textContent !== text) e.textContent = text;
    }
  }

  // copies shows the buttons that only work with script.
  function copies(root) {
    for (const b of root.querySelectorAll('button.copy')) b.hidden = false;
  }
  document.addEventListener('click', e => {
    const b = e.target.closest('button.copy');
    if (!b) return;
    const code = b.parentElement.querySelector('code');
    const done = () => { b.textContent = 'Copied'; setTimeout(() => { b.textContent = 'Copy'; }, 1500); };
    if (navigator.clipboard) navigator.clipboard.writeText(code.textContent).then(done, () => getSelection().selectAllChildren(code));
    else getSelection().selectAllChildren(code);
  });

  function enrich(root) { times(root); copies(root); }

  // Nothing that is in use moves or goes: what the reader points at, has the focus on, or selects.
  const selects = e => { const s = getSelection(); return s.rangeCount > 0 && !s.isCollapsed && s.containsNode(e, true); };
  const inUse = e => e.matches(':hover') || e.contains(document.activeElement) || selects(e);
  const waiting = new Map(); // parts that are selected: what they are to become
  const orders = new Map(); // lists that are in use: their order

  // replace puts a part in its place. The focus stays on what it was on.
  function replace(old, fresh) {
    if (selects(old)) { waiting.set(old.id, fresh); return; }
    const held = document.activeElement;
    let find = null;
    if (old.contains(held) && held !== old) {
      const href = held.getAttribute('href'), all = [...old.querySelectorAll(held.tagName)];
      const nth = all.indexOf(held);
      find = () => [...fresh.querySelectorAll(held.tagName)].find((e, i) => href ? e.getAttribute('href') === href : i === nth);
    }
    const open = [...old.querySelectorAll('details')].map(d => d.open);
    [...fresh.querySelectorAll('details')].forEach((d, i) => { d.open = Boolean(open[i]); });
    const scrolled = [...old.querySelectorAll('.scroll')].map(e => e.scrollLeft);
    if (fresh.matches('tr')) fresh.classList.add('changed');
    old.replaceWith(fresh);
    [...fresh.querySelectorAll('.scroll')].forEach((e, i) => { e.scrollLeft = scrolled[i] || 0; });
    const again = find && find();
    if (again) again.focus({preventScroll: true});
  }

  function arrange(box, ids, fresh) {
    const keep = new Set(ids), used = inUse(box);
    for (const e of [...box.children]) if (!keep.has(e.id)) e.remove();
    for (const id of ids) if (!byId(id) && fresh.has(id)) box.append(fresh.get(id));
    if (used) { orders.set(box.id, ids); return; }
    orders.delete(box.id);
    let at = box.firstElementChild;
    for (const id of ids) {
      const e = byId(id);
      if (!e) continue;
      if (e === at) at = at.nextElementSibling; else box.insertBefore(e, at);
    }
  }
  function catchUp() {
    for (const [id, fresh] of [...waiting]) {
      const old = byId(id);
      if (!old || !selects(old)) { waiting.delete(id); if (old) replace(old, fresh); }
    }
    for (const [id, ids] of [...orders]) {
      const box = byId(id);
      if (box && !inUse(box)) arrange(box, ids, new Map());
    }
  }

  // plain is an element without what changes by itself, to see whether it is another.
  function plain(e) {
    const copy = e.cloneNode(true);
    copy.classList.remove('changed');
    if (!copy.getAttribute('class')) copy.removeAttribute('class');
    for (const own of copy.querySelectorAll('.age')) own.textContent = '';
    if (copy.matches('tr')) for (const own of copy.querySelectorAll('.lease')) own.textContent = '';
    for (const d of copy.querySelectorAll('details')) d.open = false;
    for (const b of copy.querySelectorAll('button.copy')) b.textContent = '';
    return copy.outerHTML;
  }

  function apply(update) {
    const fresh = new Map();
    if (update.title) document.title = update.title;
    for (const p of update.parts) {
      const t = document.createElement('template');
      t.innerHTML = p.html;
      const e = t.content.firstElementChild;
      if (!e) continue;
      enrich(t.content);
      waiting.delete(p.id);
      const old = byId(p.id);
      if (!old) fresh.set(p.id, e);
      else {
        if (plain(old) !== plain(e)) replace(old, e);
      }
    }
    for (const [list, ids] of Object.entries(update.lists || {})) {
      const box = byId(list);
      if (box) arrange(box, ids, fresh);
      else if (ids.length) location.reload(); // the view was empty, and has no table yet
    }
    ages();
  }

  // The stream: one a tab, and none while the tab is hidden.
  const live = byId('live'), stop = byId('stop');
  let source = null, version = body.dataset.version, still = false, again = 0, lastNews = now();
  function shows(state, word) {
    live.className = 'live ' + state;
    live.querySelector('.word').textContent = word;
  }
  function close() {
    clearTimeout(again);
    if (source) source.close();
    source = null;
  }
  const lost = () => shows('off', 'not live since ' + new Date(lastNews).toISOString().slice(11, 19) + ' UTC');
  function open() {
    close();
    if (still || document.hidden) return;
    const url = body.dataset.stream, seen = 'seen=' + encodeURIComponent(version);
    source = new EventSource(url + (url.includes('?') ? '&' : '?') + seen);
    source.onopen = () => { lastNews = now(); shows('on', 'live'); };
    source.addEventListener('view', e => {
      lastNews = now();
      shows('on', 'live');
      version = e.lastEventId;
      apply(JSON.parse(e.data));
    });
    source.addEventListener('beat', () => { lastNews = now(); shows('on', 'live'); });
    source.addEventListener('out', () => location.reload()); // the login is over
    source.onerror = () => {
      lost();
      if (source && source.readyState === EventSource.CLOSED) { // refused: a browser does not come back by itself
        close();
        again = setTimeout(open, 3000 + Math.random() * 3000);
      }
    };
  }
  if (body.dataset.stream) {
    live.hidden = stop.hidden = false;
    stop.addEventListener('click', () => {
      still = !still;
      stop.setAttribute('aria-pressed', String(still));
      if (still) { close(); shows('off', 'stopped at ' + new Date(now()).toISOString().slice(11, 19) + ' UTC'); } else open();
    });
    document.addEventListener('visibilitychange', () => { if (document.hidden) close(); else open(); });
    addEventListener('pagehide', close);
    addEventListener('pageshow', e => { if (e.persisted) open(); });
    setInterval(() => {
      ages();
      catchUp();
      if (source && now() - lastNews > 32000 && live.classList.contains('on')) lost(); // two beats are missing
    }, 1000);
    // What comes by the stream waits until the page is drawn.
    if (document.readyState === 'complete') open(); else addEventListener('load', () => setTimeout(open));
  }

  enrich(document);
  ages();
  if (byId('zone') && zone !== 'UTC') byId('zone').textContent = ', and in brackets ' + zone;
  const tz = byId('tz');
  if (tz && zone !== 'UTC') tz.add(new Option(zone, zone));
  document.addEventListener('keydown', e => {
    const filter = byId('filter');
    if (e.key === '/' && filter && !/^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName)) { e.preventDefault(); filter.focus(); }
  });

  // The dashboard's address has the token behind #, which no server sees and no log has.
  const login = byId('login');
  if (login && location.hash.length > 1) {
    login.querySelector('#token').value = decodeURIComponent(location.hash.slice(1));
    history.replaceState(null, '', location.pathname + location.search);
    login.submit();
  } else if (location.href.includes('#') && !(location.hash.length > 1 && byId(location.hash.slice(1)))) {
    history.replaceState(null, '', location.pathname + location.search); // a redirect keeps what was behind #
  }
})();
