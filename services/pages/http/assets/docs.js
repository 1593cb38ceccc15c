// Calls operations from the reference, finds them, and opens the one that a link names.
const each = (selector, use) => document.querySelectorAll(selector).forEach(use);
const longest = 200000; // characters of an answer that are shown

function element(name, text) {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

// A link to an operation opens it, also one to the operation that the address names already.
function reveal() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  const box = target.closest('details');
  if (box) box.open = true;
  target.scrollIntoView();
}
addEventListener('hashchange', reveal);
reveal();

const filter = document.getElementById('filter');
if (filter) {
  document.getElementById('search').hidden = false;
  filter.addEventListener('input', () => {
    const words = filter.value.toLowerCase().split(/\s+/);
    let found = 0;
    each('main > section', (section) => {
      let any = false;
      section.querySelectorAll('.operation').forEach((box) => {
        const said = `${box.querySelector('summary').textContent} ${box.lastElementChild.id}`.toLowerCase();
        box.hidden = !words.every((word) => said.includes(word));
        if (!box.hidden) {
          any = true;
          found += 1;
        }
      });
      section.hidden = !any;
    });
    document.getElementById('found').textContent = filter.value ? `${found} found` : '';
  });
}

const key = document.getElementById('key');
if (key) {
  const credentials = document.getElementById('credentials');
  credentials.hidden = false;
  credentials.addEventListener('submit', (event) => event.preventDefault());
}
each('form[data-path]', (form) => {
  form.hidden = false;
  const shown = form.querySelector('.answer');
  const button = form.querySelector('button');
  let busy = false;
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    if (busy) return;
    busy = true;
    button.setAttribute('aria-disabled', 'true');
    try {
      shown.replaceChildren(...await call(form));
    } catch (failure) {
      shown.replaceChildren(element('p', `No answer: ${failure.message}`));
    }
    busy = false;
    button.removeAttribute('aria-disabled');
  });
});

// call returns what to show of an answer.
async function call(form) {
  let path = '/v1' + form.dataset.path;
  const query = new URLSearchParams();
  const request = { method: form.dataset.method, credentials: 'omit', cache: 'no-store', headers: {} };
  for (const field of form.elements) {
    const [place, name] = field.name.split(/\.(.*)/);
    if (place === 'body') request.body = field.value;
    if (!name || !field.value) continue;
    if (place === 'path') path = path.replace(`{${name}}`, encodeURIComponent(field.value));
    if (place === 'query') query.set(name, field.value);
    if (place === 'header') request.headers[name] = field.value;
  }
  const secret = key.value.trim();
  if (secret.startsWith('wl_live_')) request.headers['x-api-key'] = secret;
  else if (secret) request.headers.Authorization = `Bearer ${secret}`;
  if (query.size) path += `?${query}`;
  const answer = await fetch(path, request);
  const said = await answer.text();
  const head = [`${answer.status} ${answer.statusText}`];
  for (const name of ['Retry-After', 'X-Request-Id']) {
    if (answer.headers.has(name)) head.push(`${name}: ${answer.headers.get(name)}`);
  }
  const out = [element('p', head.join(' · '))];
  let text = said, code;
  try {
    const value = JSON.parse(said);
    code = value.error_code;
    text = JSON.stringify(value, null, 2);
  } catch {
    // No JSON; shown as it is.
  }
  if (code) {
    const link = element('a', `What ${code} means`);
    link.href = `/docs/errors#${encodeURIComponent(code)}`;
    const line = document.createElement('p');
    line.append(link);
    out.push(line);
  }
  if (text) {
    const box = document.createElement('pre');
    box.tabIndex = 0;
    box.append(element('code', text.length > longest ? `${text.slice(0, longest)}\n…` : text));
    out.push(box);
  }
  return out;
}
