// What a browser adds to pages that work without it.
const each = (selector, use) => document.querySelectorAll(selector).forEach(use);
const started = performance.now();

// Tokens leave the address bar, the history and what may be copied from it.
if (document.body.dataset.private !== undefined && location.search) {
  history.replaceState(null, '', location.pathname);
}

each('.problem', (box) => box.focus());

each('form', (form) => {
  let sent = false;
  // A page that comes back from the history can be sent again.
  addEventListener('pageshow', (event) => {
    if (!event.persisted) return;
    sent = false;
    for (const button of form.querySelectorAll('[aria-disabled]')) button.removeAttribute('aria-disabled');
  });
  form.addEventListener('submit', (event) => {
    if (sent) {
      event.preventDefault();
      return;
    }
    sent = true;
    for (const button of form.querySelectorAll('button[type=submit]')) button.setAttribute('aria-disabled', 'true');
    const { timezone, elapsed_ms: elapsed } = form.elements;
    if (timezone) timezone.value = Intl.DateTimeFormat().resolvedOptions().timeZone || '';
    if (elapsed) elapsed.value = Math.round(performance.now() - started);
  });
});

// counts down, and calls ended at the end unless the function that it returns is called before.
function countdown(note, seconds, ended) {
  const end = performance.now() + seconds * 1000;
  const tick = () => {
    const left = Math.max(0, Math.ceil((end - performance.now()) / 1000));
    note.textContent = note.dataset.text.replace('%s', `${Math.floor(left / 60)}:${String(left % 60).padStart(2, '0')}`);
    if (left > 0) return;
    clearInterval(timer);
    ended();
  };
  const timer = setInterval(tick, 1000);
  tick();
  return () => clearInterval(timer);
}

each('[data-seconds]', (note) => {
  const disable = (wait) => each('form button[type=submit]', (button) => { button.disabled = wait; });
  disable(true);
  countdown(note, note.dataset.seconds, () => {
    note.remove();
    each('[data-ready]', (ready) => { ready.textContent = ready.dataset.ready; });
    disable(false);
  });
});

// Where the owner sends people next. Whoever wants to stay has time to say so.
each('[data-redirect]', (link) => {
  const note = document.getElementById(link.dataset.redirect), stay = link.nextElementSibling;
  const stop = countdown(note, note.dataset.redirectSeconds, () => location.assign(link.href));
  stay.hidden = false;
  stay.addEventListener('click', () => {
    stop();
    stay.remove();
    note.remove();
  });
});

each('[data-copy]', (button) => {
  button.hidden = false;
  button.addEventListener('click', async () => {
    const from = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(from.value ?? from.textContent);
      button.textContent = button.dataset.done;
    } catch {
      // Without permission the text is selected, ready to be copied by hand.
      if (from.select) from.select();
      else getSelection().selectAllChildren(from);
    }
  });
});

each('[data-share]', (button) => {
  if (!navigator.share) return;
  button.parentElement.hidden = false;
  const { share: url, text } = button.dataset;
  button.addEventListener('click', () => navigator.share({ url, text }).catch(() => {}));
});

// This device remembers who signed up, so that they see their place and link again.
const store = {
  get(id) {
    try {
      return JSON.parse(localStorage.getItem('waitlist:' + id));
    } catch {
      return null;
    }
  },
  set(id, value) {
    try {
      if (value) localStorage.setItem('waitlist:' + id, JSON.stringify(value));
      else localStorage.removeItem('waitlist:' + id);
    } catch {
      // Storage may be switched off.
    }
  },
};
each('[data-remember]', ({ dataset: { remember, email, token } }) => store.set(remember, { email, token }));
each('[data-resume]', (form) => {
  const known = store.get(form.dataset.resume);
  if (!known) return;
  form.elements.email.value = known.email;
  form.elements.token.value = known.token;
  form.requestSubmit();
});
each('[data-forget]', (button) => {
  button.parentElement.hidden = false;
  button.addEventListener('click', () => {
    store.set(button.dataset.forget, null);
    location.assign(location.pathname);
  });
});

// The place moves by itself: asked for every few seconds, less often while nothing
// happens, and not at all in a tab that nobody sees.
const first = 3000, longest = 60000;
each('[data-live]', (box) => {
  const format = new Intl.NumberFormat(document.documentElement.lang);
  // Each note shows one value of the answer; it returns whether that has changed.
  const update = (answer) => [...box.querySelectorAll('[data-value]')].map((note) => {
    const text = (note.dataset.text ?? '%d').replace('%d', format.format(answer[note.dataset.value]));
    const changed = text !== note.textContent;
    note.textContent = text;
    return changed;
  }).includes(true);
  let wait = first;
  const again = () => setTimeout(ask, wait);
  async function ask() {
    if (document.hidden) {
      document.addEventListener('visibilitychange', () => { wait = first; ask(); }, { once: true });
      return;
    }
    wait = Math.min(wait * 1.3, longest);
    try {
      const answer = await fetch(box.dataset.live, { credentials: 'omit' });
      if (answer.status === 404) return;
      if (answer.ok) {
        const now = await answer.json();
        if (now.position === undefined) { // the owner hides places by now
          box.remove();
          return;
        }
        if (update(now)) {
          box.classList.remove('moved');
          requestAnimationFrame(() => box.classList.add('moved'));
          wait = first;
        }
      } else {
        wait = longest;
      }
    } catch {
      // Offline; the next time, perhaps.
    }
    again();
  }
  again();
});
