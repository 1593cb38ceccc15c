// Draws what the server answers. Whatever comes from a metric or a span becomes text, never markup.
'use strict';

const colours = ['#4c86e8', '#e0842c', '#3aa675', '#cf4f5d', '#9a68d8', '#b59a22', '#2ca9b8', '#d363a6', '#7c8798', '#77a83a'];
const main = document.getElementById('main'), controls = document.getElementById('controls');
let charts = [], timer, turn = 0, interval = 5;
// What the reader chose; the view and its argument stand in the address.
const chosen = { range: '5m', order: 'slowest', name: '' };

// el makes an element: el('td', {class: 'number'}, 'text', child, …).
function el(tag, attributes, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attributes || {})) {
    if (k.startsWith('on')) e.addEventListener(k.slice(2), v);
    else if (v !== undefined && v !== false) e.setAttribute(k, v === true ? '' : v);
  }
  e.append(...children);
  return e;
}

async function get(path) {
  const res = await fetch('/api/' + path);
  if (!res.ok) throw new Error((await res.text()).trim());
  return res.json();
}

const short = v => v === 0 ? '0' : Math.abs(v) >= 1000 ? Math.round(v).toLocaleString('en') : String(+v.toPrecision(3));
// seconds of a length, and numbers of Grafana's units.
function seconds(v) {
  const a = Math.abs(v);
  if (a === 0) return '0';
  if (a < 1e-3) return short(v * 1e6) + ' µs';
  if (a < 1) return short(v * 1e3) + ' ms';
  if (a < 120) return short(v) + ' s';
  if (a < 7200) return short(v / 60) + ' min';
  return a < 172800 ? short(v / 3600) + ' h' : short(v / 86400) + ' days';
}
function bytes(v) {
  let i = 0;
  for (; Math.abs(v) >= 1024 && i < 4; i++) v /= 1024;
  return short(v) + [' B', ' KiB', ' MiB', ' GiB', ' TiB'][i];
}
const units = { s: seconds, bytes, percentunit: v => short(v * 100) + ' %', ops: v => short(v) + '/s', none: short };

// busy joins the lines that stay at 0 where many would hide the others.
function busy(lines) {
  const still = lines.filter(l => l.values.every(v => !v));
  if (lines.length <= 12 || still.length < 2) return lines;
  const name = still.length === lines.length ? `all ${still.length}` : `${still.length} more`;
  return [...lines.filter(l => !still.includes(l)), { ...still[0], name }];
}

const hour = at => new Date(at).toLocaleTimeString('en-GB');
const clock = ticks => ticks.map(t => hour(t * 1000).slice(0, ticks[1] - ticks[0] < 60 ? 8 : 5));
// alone are the numbers between two gaps, which no line shows.
const alone = (u, i) => u.data[i].flatMap((v, at, all) => v != null && all[at - 1] == null && all[at + 1] == null ? [at] : []);
// Steps of an axis: of bytes, and of seconds up to years.
const steps = {
  bytes: Array.from({ length: 45 }, (_, i) => 2 ** i),
  s: [...Array.from({ length: 7 }, (_, i) => [1, 2, 5].map(n => n * 10 ** (i - 6))).flat(), 10, 20, 30, 60, 120, 300, 600, 1200, 1800,
    ...[1, 2, 4, 6, 12].map(h => h * 3600), ...[1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].map(d => d * 86400)],
};

function chart(box, panel, times) {
  const format = units[panel.unit] || short, lines = busy(panel.lines);
  const keys = lines.map((_, i) => colours[i % colours.length]);
  const legend = el('div', { class: 'legend' });
  const values = lines.map((l, i) => {
    const mark = el('i'), value = el('b');
    mark.style.background = keys[i];
    legend.append(el('span', {}, mark, l.name || 'value', value));
    return value;
  });
  // The legend shows the values under the pointer, else the last.
  const show = at => lines.forEach((l, i) => {
    const v = at == null ? l.values.findLast(v => v !== null) : l.values[at];
    values[i].textContent = v == null ? '–' : format(v);
  });
  const style = getComputedStyle(document.body);
  const axis = {
    stroke: style.getPropertyValue('color'), grid: { stroke: '#8886', width: 0.5 }, ticks: { show: false }, font: '11px system-ui',
  };
  // Each mark leads to the trace of a request, as Grafana's exemplars do.
  const marks = panel.exemplars.map(e => el('a', {
    class: 'exemplar', href: '#/traces/' + e.trace, title: `${format(e.value)} at ${hour(e.at * 1000)}: its trace`,
  }));
  const highest = Math.max(0, ...panel.exemplars.map(e => e.value));
  const place = u => panel.exemplars.forEach((e, i) => {
    marks[i].style.left = u.valToPos(e.at, 'x') + 'px';
    marks[i].style.top = u.valToPos(e.value, 'y') + 'px';
    marks[i].hidden = e.at < times[0];
  });
  if (marks.length) legend.append(el('span', {}, el('i', { class: 'exemplar' }), 'a trace'));
  const target = el('div');
  box.append(target, legend);
  const plot = new uPlot({
    width: box.clientWidth - 24, height: 190, legend: { show: false },
    cursor: { sync: { key: 'time' }, points: { size: 6 }, drag: { x: false } },
    hooks: { setCursor: [u => show(u.cursor.idx)], ready: [u => u.over.append(...marks)], draw: [place] },
    scales: { y: { range: (_, low, high) => {
      const top = Math.max(high, highest);
      return [Math.min(0, low), top > 0 ? top * 1.08 : low < 0 ? 0 : 1];
    } } },
    axes: [{ ...axis, size: 26, space: 58, values: (_, ticks) => clock(ticks) },
      { ...axis, size: 66, values: (_, ticks) => ticks.map(format), ...(steps[panel.unit] ? { incrs: steps[panel.unit] } : {}) }],
    series: [
      {},
      ...lines.map((l, i) => ({
        label: l.name, stroke: keys[i], width: 1.5, spanGaps: false, points: { show: true, filter: alone, size: 4, fill: keys[i] },
      })),
    ],
  }, [times, ...lines.map(l => l.values)], target);
  show(null);
  charts.push({ plot, box });
}

// begun drops the times before the first number, so that a suite that has just begun fills its panels.
function begun(d) {
  const first = Math.min(...d.panels.flatMap(p => p.lines.map(l => l.values.findIndex(v => v !== null))), d.times.length);
  const from = Math.max(0, Math.min(first, d.times.length - 20));
  d.times = d.times.slice(from);
  for (const l of d.panels.flatMap(p => p.lines)) l.values = l.values.slice(from);
}

function select(label, name, options, value) {
  const s = el('select', { name, onchange: () => { chosen[name] = s.value; draw(); } });
  for (const [v, text] of options) s.append(el('option', { value: v, selected: v === value }, text));
  return el('label', {}, label, s);
}

async function dashboard(uid) {
  const query = new URLSearchParams(Object.entries(chosen).filter(([, v]) => v !== ''));
  const d = await get('dashboards/' + uid + '?' + query);
  begun(d);
  const ranges = [['5m', '5 minutes'], ['15m', '15 minutes'], ['1h', '1 hour'], ['6h', '6 hours'], ['24h', '1 day']];
  const form = [select('Range', 'range', ranges, chosen.range)];
  for (const v of d.variables) {
    form.push(select(v.label, v.name, [...(v.all ? [['', 'All']] : []), ...v.options.map(o => [o, o])], v.value));
  }
  const grid = el('div', { class: 'grid' });
  return { title: d.title, form, content: grid, after: () => d.panels.forEach(p => {
    const box = el('section', { class: 'panel', 'data-title': p.title }, el('h2', {}, p.title), el('p', {}, p.sentence));
    grid.append(box);
    if (p.lines.length === 0) box.append(el('div', { class: 'none' }, 'No data'));
    else chart(box, p, d.times);
  }) };
}

async function alerts() {
  const rows = (await get('alerts')).map(a => el('tr', {},
    el('td', { class: a.state }, a.state), el('td', { class: 'name' }, a.name), el('td', {}, a.severity),
    el('td', {}, ...(a.since ? [`${a.summary} `, el('code', {}, a.runbook)] : [el('code', {}, a.expr)])),
    el('td', {}, a.since ? hour(a.since) : ''), el('td', { class: 'number' }, a.for)));
  const head = ['State', 'Alert', 'Severity', 'Condition, or what it says now', 'Since', 'For'].map(t => el('th', {}, t));
  return { title: 'Alerts', form: [], content: el('table', {}, el('thead', {}, el('tr', {}, ...head)), el('tbody', {}, ...rows)) };
}

function traceTable(list) {
  const head = [['Begin'], ['Service'], ['Request'], ['Status'], ['Time', 'number'], ['Spans', 'number'], ['Services', 'number']];
  const rows = list.map(t => el('tr', {},
    el('td', {}, hour(t.start)), el('td', {}, t.service),
    el('td', {}, el('a', { href: '#/traces/' + t.id }, t.name)),
    el('td', { class: t.error ? 'bad' : '' }, t.status || (t.error ? 'error' : '')),
    ...[seconds(t.length / 1e6), t.spans, t.services].map(n => el('td', { class: 'number' }, n))));
  return el('table', {}, el('thead', {}, el('tr', {}, ...head.map(([t, c]) => el('th', { class: c }, t)))), el('tbody', {}, ...rows));
}

async function traces() {
  const list = await get('traces?' + new URLSearchParams({ name: chosen.name, order: chosen.order }));
  const look = () => { chosen.name = name.value; draw(); };
  const name = el('input', { name: 'name', placeholder: 'service or route', value: chosen.name, onchange: look });
  const order = select('First', 'order', [['slowest', 'slowest'], ['newest', 'newest']], chosen.order);
  return {
    title: 'Traces', form: [el('label', {}, 'Name', name), order],
    content: list.length ? traceTable(list) : el('p', { class: 'soft' }, 'No trace has come yet. Requests make traces: call the API.'),
  };
}

async function trace(id) {
  const t = await get('traces/' + id);
  const begin = Math.min(...t.rows.map(r => r.start)), end = Math.max(...t.rows.map(r => r.start + r.length));
  const all = Math.max(end - begin, 1); // µs
  const services = [...new Set(t.rows.map(r => r.service))];
  const body = el('tbody');
  for (const r of t.rows) {
    const at = (r.start - begin) / all * 100, width = r.length / all * 100;
    const bar = el('div', { class: 'bar' }), time = el('span', { class: 'time' }, seconds(r.length / 1e6));
    const name = el('td', {}, el('span', { class: 'soft' }, r.service + ' '), el('span', { class: r.error ? 'bad' : '' }, r.name));
    const colour = colours[services.indexOf(r.service) % colours.length];
    bar.style.cssText = `left:${at}%;width:${Math.min(width, 100 - at)}%;background:${colour}`;
    if (at + width < 80) time.style.left = `${at + width}%`; else time.style.right = `${100 - at}%`;
    name.style.paddingLeft = `${10 + r.depth * 16}px`;
    const facts = Object.entries({ kind: r.kind, begin: '+' + seconds((r.start - begin) / 1e6), ...r.attributes });
    const more = el('tr', { hidden: true }, el('td', { colspan: 2 }, el('code', {}, facts.map(f => f.join(' = ')).join('\n'))));
    const open = () => { more.hidden = !more.hidden; };
    body.append(el('tr', { class: 'span', tabindex: 0, onclick: open, onkeydown: e => { if (e.key === 'Enter') open(); } },
      name, el('td', {}, el('div', { class: 'track' }, bar, time))), more);
  }
  const facts = [new Date(t.start).toLocaleString('en-GB'),
    `the root took ${seconds(t.length / 1e6)}, with all that it caused ${seconds(all / 1e6)}`,
    `${t.spans} spans in ${t.services} services`, t.id];
  const content = el('div', {}, el('h1', {}, t.service + ' ' + t.name), el('p', { class: 'soft' }, facts.join(' · ')),
    el('table', { class: 'spans' }, body));
  for (const [title, list] of [['Commits and others that link here', t.linked], ['Linked requests', t.linksTo]]) {
    if (list.length) content.append(el('h1', {}, title), traceTable(list));
  }
  return { title: t.name, form: [el('a', { href: '#/traces' }, '← all traces')], content, still: true };
}

// draw replaces the view. An answer that comes after the reader has moved on is dropped.
async function draw() {
  const mine = ++turn;
  clearInterval(timer);
  const [view, argument] = location.hash.slice(2).split('/');
  try {
    const index = await get('dashboards');
    interval = index.interval;
    const uid = view || index.dashboards[0].uid;
    if (mine !== turn) return;
    const link = (to, text, apart) => el('a', { href: '#/' + to, class: apart ? 'apart' : '', 'aria-current': to === uid && 'page' }, text);
    document.getElementById('nav').replaceChildren(...index.dashboards.map(d => link(d.uid, d.title)),
      link('alerts', 'Alerts', true), link('traces', 'Traces'));
    const state = document.getElementById('state');
    state.textContent = [`${index.up} of ${index.targets} scraped`, index.firing ? `${index.firing} firing` : 'no alert fires',
      ...(index.pending ? [`${index.pending} pending`] : [])].join(' · ');
    state.className = index.firing || index.up < index.targets ? 'firing' : index.pending ? 'pending' : '';
    const views = { alerts, traces: argument ? () => trace(argument) : traces };
    const made = await (views[uid] || (() => dashboard(uid)))();
    if (mine !== turn) return;
    charts.forEach(c => c.plot.destroy());
    charts = [];
    if (!controls.contains(document.activeElement)) controls.replaceChildren(...made.form);
    main.replaceChildren(made.content);
    made.after?.();
    document.title = made.title + ' · Waitlist';
    main.dataset.drawn = uid + (argument ? '/' + argument : '');
    if (made.still) return;
  } catch (err) {
    if (mine !== turn) return;
    main.replaceChildren(el('p', { class: 'bad' }, 'Cannot draw: ' + err.message));
  }
  timer = setInterval(() => { if (!document.hidden) draw(); }, Math.max(interval, 5) * 1000);
}

controls.addEventListener('submit', e => e.preventDefault());
addEventListener('hashchange', () => { document.activeElement?.blur(); draw(); });
addEventListener('resize', () => charts.forEach(c => c.plot.setSize({ width: c.box.clientWidth - 24, height: 190 })));
draw();
