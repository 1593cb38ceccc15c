// <waitlist-form waitlist="…" locale="de" referral="…">: a signup form on any site.
//
// Works under a host's strict Content-Security-Policy that admits this origin in
// script-src and connect-src: no inline style, no eval, no HTML from strings. The host
// styles it by custom properties (--waitlist-accent, --waitlist-on-accent,
// --waitlist-radius, --waitlist-font, --waitlist-text, --waitlist-ground, --waitlist-error) and ::part(form|label|input|
// button|error|done). Events, which bubble: waitlist:ready, waitlist:joined, waitlist:error.
(() => {
  const origin = new URL(document.currentScript.src).origin;
  const texts = {
    en: {
      email: 'Email address', first_name: 'First name', last_name: 'Last name', phone: 'Phone number', optional: 'optional',
      choose: 'Please choose', join: 'Join the waitlist', count: '{} people have joined so far.', closed: 'This waitlist is closed.',
      consent: 'I agree to the use of my data for this waitlist.', done: 'You are on the list.', place: 'Your place: {}',
      share: 'Each friend who joins through your link moves you up by {}.', link: 'Your link', busy: 'Please try again in {} seconds.',
      failed: 'That did not work. Please try again in a moment.', brand: 'Powered by Waitlist',
    },
    de: {
      email: 'E-Mail-Adresse', first_name: 'Vorname', last_name: 'Nachname', phone: 'Telefonnummer', optional: 'freiwillig',
      choose: 'Bitte auswählen', join: 'Auf die Warteliste', count: 'Schon {} Anmeldungen.', closed: 'Diese Warteliste ist geschlossen.',
      consent: 'Ich bin mit der Nutzung meiner Daten für diese Warteliste einverstanden.', done: 'Sie sind auf der Liste.',
      place: 'Ihr Platz: {}', share: 'Mit jeder Anmeldung über Ihren Link rücken Sie um {} auf.', link: 'Ihr Link',
      busy: 'Bitte versuchen Sie es in {} Sekunden noch einmal.', brand: 'Bereitgestellt mit Waitlist',
      failed: 'Das hat nicht geklappt. Bitte versuchen Sie es gleich noch einmal.', 'This field is required.': 'Bitte ausfüllen.',
      'Enter a valid email address.': 'Bitte eine gültige E-Mail-Adresse angeben.',
      'Use your work email address.': 'Bitte die berufliche E-Mail-Adresse angeben.',
      'Addresses of this email domain cannot sign up here.': 'Adressen dieser Domain können sich hier nicht anmelden.',
      'Choose one of the options.': 'Bitte eine der Möglichkeiten wählen.',
      'Check this box to continue.': 'Bitte ankreuzen, um fortzufahren.',
      'This must not be empty.': 'Bitte ausfüllen.',
    },
  };
  const css = `
:host { display: block; font-family: var(--waitlist-font, inherit); color: var(--waitlist-text, inherit); line-height: 1.5; }
* { box-sizing: border-box; }
p { margin: 0 0 .75em; }
label { display: block; font-weight: 600; }
.check { display: flex; gap: .5em; align-items: start; }
.check label { font-weight: 400; }
.field { margin: 0 0 1em; }
input, select, button {
  font: inherit; color: inherit; width: 100%; min-height: 2.75em; padding: .5em .75em; border: 1px solid #7a7a90;
  border-radius: var(--waitlist-radius, .5em); background: var(--waitlist-ground, transparent);
}
input[type=checkbox] { width: 1.5em; min-height: 1.5em; flex: none; margin: 0; }
button {
  background: var(--waitlist-accent, #3730a3); color: var(--waitlist-on-accent, #fff);
  border-color: transparent; font-weight: 600; cursor: pointer;
}
button:disabled { opacity: .7; }
:focus-visible { outline: 3px solid var(--waitlist-accent, #3730a3); outline-offset: 2px; }
.error { color: var(--waitlist-error, #a1122a); margin: .25em 0 0; }
.error:empty { display: none; }
.website { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
small, small a { color: inherit; font-size: .85em; }`;
  let sheet;
  // Robots that run scripts are no views.
  const robot = /(^|[^u])bot\b|crawl|spider|slurp|preview|lighthouse/i.test(navigator.userAgent);

  function element(tag, props = {}, ...children) {
    const made = Object.assign(document.createElement(tag), props);
    if (props.part) made.setAttribute('part', props.part);
    made.append(...children);
    return made;
  }

  class WaitlistForm extends HTMLElement {
    #root = this.attachShadow({ mode: 'open' });
    #fields = new Map();
    #started = 0;
    #look = {};
    // The waitlist whose form is shown or on its way, its form, and whether somebody joined it.
    #waitlist = null;
    #config;
    #done = false;
    #problem;

    static observedAttributes = ['waitlist', 'locale'];

    connectedCallback() {
      if (!sheet) {
        sheet = new CSSStyleSheet();
        sheet.replaceSync(css);
      }
      if (this.#waitlist === null) this.attributeChangedCallback('waitlist');
    }

    attributeChangedCallback(name) {
      if (!this.isConnected || !sheet) return;
      const waitlist = this.getAttribute('waitlist');
      if (name === 'locale') {
        if (this.#config && !this.#done) this.#draw();
      } else if (waitlist !== this.#waitlist) {
        this.#waitlist = waitlist;
        this.#config = undefined;
        this.#done = false;
        this.#started = 0;
        this.#fields.clear();
        this.#show();
        if (waitlist) this.#load();
      }
    }

    #api(waitlist) { return `${origin}/v1/public/waitlists/${encodeURIComponent(waitlist)}`; }

    #lang() {
      const asked = this.getAttribute('locale') || this.#look.locale || document.documentElement.lang || navigator.language;
      return asked.toLowerCase().startsWith('de') ? 'de' : 'en';
    }

    #text(key, value) {
      const text = texts[this.#lang()][key] ?? key;
      return text.replace('{}', typeof value === 'number' ? value.toLocaleString(this.#lang()) : value);
    }

    #tell(name, detail) {
      this.dispatchEvent(new CustomEvent('waitlist:' + name, { detail, bubbles: true, composed: true }));
    }

    #show(...content) { this.#root.replaceChildren(...content); }

    async #load() {
      const waitlist = this.#waitlist;
      const overtaken = () => waitlist !== this.#waitlist || this.#done;
      try {
        if (robot) return;
        const answer = await fetch(`${this.#api(waitlist)}/config`);
        const config = await answer.json();
        if (overtaken()) return;
        if (!answer.ok) throw Object.assign(new Error(config.error), { code: config.error_code });
        this.#config = config;
        this.#started ||= performance.now();
        this.#draw();
        this.#tell('ready', { waitlist: config.waitlist_id });
      } catch (error) {
        if (overtaken()) return;
        this.#show(element('p', { part: 'error', className: 'error', role: 'alert', textContent: this.#text('failed') }));
        this.#tell('error', { code: error.code, message: error.message });
      }
    }

    // Keeps what was entered so far.
    #draw() {
      const entered = new Map(this.#fields);
      this.#fields.clear();
      this.#dress(this.#config.appearance ?? {});
      this.#form(this.#config);
      for (const [name, { input }] of this.#fields) {
        const before = entered.get(name)?.input;
        if (!before) continue;
        input.value = before.value;
        input.checked = before.checked;
      }
    }

    // The host's own properties win over the owner's colour.
    #dress(look) {
      this.#look = look;
      this.#root.adoptedStyleSheets = [sheet];
      if (!/^#[0-9a-f]{6}$/.test(look.accent)) return;
      const [r, g, b] = [1, 3, 5].map((at) => {
        const s = parseInt(look.accent.slice(at, at + 2), 16) / 255;
        return s <= 0.04045 ? s / 12.92 : ((s + 0.055) / 1.055) ** 2.4;
      });
      // Above it black reads better than white.
      const on = 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? '#000' : '#fff';
      const own = new CSSStyleSheet();
      own.replaceSync(`button { background: var(--waitlist-accent, ${look.accent}); color: var(--waitlist-on-accent, ${on}); }`);
      this.#root.adoptedStyleSheets = [sheet, own];
    }

    #field(name, label, input, required) {
      const id = 'f-' + name;
      const error = element('p', { id: id + '-error', className: 'error', part: 'error' });
      Object.assign(input, { id, name, required });
      input.setAttribute('aria-describedby', error.id);
      const caption = element('label', { htmlFor: id, part: 'label' });
      caption.append(label);
      this.#fields.set(name, { input, error });
      if (input.type === 'checkbox') {
        return element('div', { className: 'field' }, element('div', { className: 'check' }, input, caption), error);
      }
      if (!required) caption.append(` (${this.#text('optional')})`);
      input.setAttribute('part', 'input');
      return element('div', { className: 'field' }, caption, input, error);
    }

    #consent(text) {
      const out = document.createDocumentFragment();
      const link = /\[([^[\]]+)\]\(((?:https?:\/\/|mailto:)[^\s()<>"]+)\)/g;
      let at = 0;
      for (const match of text.matchAll(link)) {
        out.append(text.slice(at, match.index));
        out.append(element('a', { href: match[2], target: '_blank', rel: 'noopener', textContent: match[1] }));
        at = match.index + match[0].length;
      }
      out.append(text.slice(at));
      return out;
    }

    #form(config) {
      if (config.status !== 'open') {
        this.#show(element('p', { part: 'done', textContent: this.#text('closed') }));
        return;
      }
      const form = element('form', { noValidate: true });
      form.setAttribute('part', 'form');
      const input = (type, autocomplete) => element('input', { type, autocomplete });
      if (config.show_social_proof && config.signup_count) {
        form.append(element('p', { textContent: this.#text('count', config.signup_count) }));
      }
      form.append(this.#field('email', this.#text('email'), input('email', 'email'), true));
      if (config.name_field !== 'hidden') {
        const required = config.name_field === 'required';
        form.append(this.#field('first_name', this.#text('first_name'), input('text', 'given-name'), required));
        form.append(this.#field('last_name', this.#text('last_name'), input('text', 'family-name'), required));
      }
      if (config.phone_field !== 'hidden') {
        form.append(this.#field('phone', this.#text('phone'), input('tel', 'tel'), config.phone_field === 'required'));
      }
      for (const question of config.custom_questions ?? []) {
        let control = element('input', { type: question.type === 'checkbox' ? 'checkbox' : 'text' });
        if (question.type === 'dropdown') {
          control = element('select', {}, element('option', { value: '', textContent: this.#text('choose') }),
            ...question.options.map((option) => element('option', { value: option, textContent: option })));
        }
        form.append(this.#field('custom_answers.' + question.id, question.label, control, question.required));
      }
      if (config.require_consent || config.consent_text) {
        const text = config.consent_text ? this.#consent(config.consent_text) : this.#text('consent');
        form.append(this.#field('consent', text, element('input', { type: 'checkbox' }), config.require_consent));
      }
      const trap = element('input', { name: 'website', tabIndex: -1, autocomplete: 'off' });
      // Assistive technology and password managers leave it alone.
      for (const name of ['aria-hidden', 'data-1p-ignore', 'data-bwignore', 'data-lpignore']) trap.setAttribute(name, 'true');
      trap.setAttribute('data-form-type', 'other');
      form.append(element('div', { className: 'website' }, trap));
      const problem = element('p', { className: 'error', part: 'error', role: 'alert' });
      const button = element('button', { type: 'submit', part: 'button', textContent: this.#look.button_text || this.#text('join') });
      this.#problem = problem;
      form.append(problem, button);
      if (!config.hide_branding) {
        const brand = element('a', { href: origin, target: '_blank', rel: 'noopener', textContent: this.#text('brand') });
        form.append(element('p', {}, element('small', {}, brand)));
      }
      form.addEventListener('submit', async (event) => {
        event.preventDefault();
        if (button.disabled) return;
        button.disabled = true;
        problem.textContent = '';
        try {
          await this.#join(config, trap.value);
        } catch (error) {
          this.#problem.textContent = this.#text('failed');
          this.#tell('error', { message: error.message });
        }
        button.disabled = false;
      });
      this.#show(form);
    }

    async #join(config, website) {
      const query = new URLSearchParams(location.search);
      const body = { website, elapsed_ms: Math.round(performance.now() - this.#started), custom_answers: {} };
      body.timezone = Intl.DateTimeFormat().resolvedOptions().timeZone;
      // Programs that make links of text take the punctuation behind a link for a part of it.
      const referral = this.getAttribute('referral') || query.get('ref')?.replace(/[^\w-]+$/, '');
      if (referral) body.referred_by_token = referral;
      for (const name of ['utm_source', 'utm_medium', 'utm_campaign', 'utm_term', 'utm_content']) {
        const value = [...(query.get(name) ?? '').replaceAll('\0', '')].slice(0, 255).join('');
        if (value) body[name] = value;
      }
      for (const [name, { input, error }] of this.#fields) {
        error.textContent = '';
        input.removeAttribute('aria-invalid');
        const value = input.type === 'checkbox' ? input.checked : input.value;
        const [, id] = name.split('custom_answers.');
        if (value === '') continue;
        if (id) body.custom_answers[id] = value;
        else body[name] = value;
      }
      // As text, a browser asks no permission first.
      const send = () => fetch(`${this.#api(config.waitlist_id)}/signups`, { method: 'POST', body: JSON.stringify(body) });
      let answer = await send();
      let said = await answer.json();
      // What the person did not enter keeps nobody out.
      const added = (said.errors ?? []).filter(({ field }) => /^(utm_.*|timezone|elapsed_ms)$/.test(field));
      if (added.length) {
        for (const { field } of added) delete body[field];
        answer = await send();
        said = await answer.json();
      }
      if (config.waitlist_id !== this.#waitlist) return;
      if (answer.ok) {
        this.#joined(config, said);
        return;
      }
      this.#tell('error', { code: said.error_code, message: said.error, errors: said.errors });
      const wrong = said.error_code === 'DOMAIN_RESTRICTED' ? [{ field: 'email', message: said.error }] : said.errors ?? [];
      // The owner has changed the form meanwhile.
      if (wrong.some(({ field }) => !this.#fields.has(field))) await this.#load();
      let focused = false;
      for (const { field, message } of wrong) {
        const at = this.#fields.get(field);
        if (!at) continue;
        at.error.textContent = this.#text(message);
        at.input.setAttribute('aria-invalid', 'true');
        if (!focused) at.input.focus();
        focused = true;
      }
      if (focused) return;
      const problem = this.#problem;
      const wait = answer.headers.get('Retry-After');
      if (answer.status === 429) problem.textContent = this.#text('busy', Number(wait ?? 1));
      else if (said.error_code === 'WAITLIST_CLOSED') problem.textContent = this.#text('closed');
      else problem.textContent = this.#text('failed');
    }

    #joined(config, signup) {
      this.#done = true;
      const link = `${origin}/w/${config.waitlist_id}?ref=${signup.referral_token}`;
      const done = element('div', { tabIndex: -1 }, element('p', { textContent: this.#text('done') }));
      done.setAttribute('part', 'done');
      done.setAttribute('role', 'status');
      if (signup.position) done.append(element('p', { textContent: this.#text('place', signup.position) }));
      const shown = element('input', { id: 'link', readOnly: true, value: link });
      shown.setAttribute('part', 'input');
      done.append(element('p', { textContent: this.#text('share', config.referral_boost) }),
        element('label', { htmlFor: 'link', textContent: this.#text('link') }), shown);
      this.#show(done);
      done.focus();
      this.#tell('joined', {
        email: signup.email, position: signup.position, referral_token: signup.referral_token, link, redirect_url: signup.redirect_url,
      });
      if (signup.redirect_url) location.assign(signup.redirect_url);
    }
  }

  if (!customElements.get('waitlist-form')) customElements.define('waitlist-form', WaitlistForm);
})();
