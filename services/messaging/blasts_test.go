package messaging_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/services/messaging"
)

// owners requests the blasts of a crowd.
func (c *crowd) owners(change func(*messaging.BlastsConfig)) *messaging.Blasts {
	cfg := messaging.BlastsConfig{
		Store: c.blasts, Lists: c, Wake: func() {}, Log: slog.New(slog.NewTextHandler(c.Output(), nil)),
		Now: time.Now, Wait: 20 * time.Millisecond,
	}
	if change != nil {
		change(&cfg)
	}
	return messaging.NewBlasts(cfg)
}

func paying(role access.Role, change func(*access.Actor, *access.Grant)) access.Actor {
	g := access.Grant{OwnerID: ownerID, Role: role, Entitlement: access.Entitlement{Tier: access.Pro, Status: access.Active, Version: 1}}
	a := access.Actor{AccountID: ownerID, EmailVerified: true}
	if role != access.Owner {
		a.AccountID = uuid.NewString()
	}
	if change != nil {
		change(&a, &g)
	}
	a.Grants = []access.Grant{g}
	return a
}

// forgetful is a store that fails after it has created a blast.
type forgetful struct{ messaging.BlastStore }

func (forgetful) Blast(context.Context, string) (messaging.Blast, error) {
	return messaging.Blast{}, errors.New("away")
}

// A blast that was created is never answered with an error: a caller that repeats the request would send it twice.
func TestABlastThatWasMadeIsNoError(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	list := c.list(1)
	out, _, err := c.owners(func(cfg *messaging.BlastsConfig) { cfg.Store = forgetful{c.blasts} }).Create(t.Context(),
		paying(access.Owner, nil), list, []byte(news), "key")
	if err != nil || out.State != messaging.BlastQueued || out.Recipients != 0 {
		t.Fatalf("%+v, %v", out, err)
	}
	again, replayed, err := c.owners(nil).Create(t.Context(), paying(access.Owner, nil), list, []byte(news), "key")
	if err != nil || !replayed || again.ID != out.ID || again.State != messaging.BlastQueued {
		t.Errorf("%+v, %v, %v", again, replayed, err)
	}
}

const news = `{"subject":"News","text_body":"We are live"}`

// Each refusal takes precedence over the later ones in the list.
func TestTheOrderOfChecksOfABlast(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	list := c.list(3)
	basic := func(_ *access.Actor, g *access.Grant) { g.Entitlement.Tier = access.Basic }
	for _, tt := range []struct {
		name     string
		waitlist string
		actor    access.Actor
		enforce  bool
		body     string
		want     apierr.Code
		list     apierr.Code
	}{
		{"no waitlist", uuid.NewString(), paying(access.Owner, nil), false, "x", apierr.NotFound, apierr.NotFound},
		{"a stranger", list, paying(access.Owner, func(a *access.Actor, g *access.Grant) {
			g.OwnerID, a.EmailVerified = uuid.NewString(), false
		}), true, "x", apierr.Forbidden, apierr.Forbidden},
		{"not verified, and over", list, paying(access.Owner, func(a *access.Actor, g *access.Grant) {
			a.EmailVerified, g.Entitlement.Status, g.Entitlement.Trial = false, access.Inactive, true
		}), true, "x", apierr.EmailNotVerified, apierr.TrialExpired},
		{"trial over, viewer", list, paying(access.Viewer, func(_ *access.Actor, g *access.Grant) {
			g.Entitlement.Status, g.Entitlement.Trial = access.Inactive, true
		}), true, "x", apierr.TrialExpired, apierr.TrialExpired},
		{"viewer", list, paying(access.Viewer, nil), true, "x", apierr.Forbidden, ""},
		{"bad body below Pro", list, paying(access.Owner, basic), false, "x", apierr.InvalidBody, apierr.TierRequired},
		{"invalid below Pro", list, paying(access.Owner, basic), false, `{}`, apierr.ValidationError, apierr.TierRequired},
		{"below Pro", list, paying(access.Owner, basic), false, news, apierr.TierRequired, apierr.TierRequired},
		{
			"not verified, not asked for", list, paying(access.Owner, func(a *access.Actor, _ *access.Grant) { a.EmailVerified = false }), false,
			news, "", "",
		},
		{"admin", list, paying(access.Admin, nil), true, news, "", ""},
	} {
		b := c.owners(func(cfg *messaging.BlastsConfig) {
			cfg.Limits = messaging.Limits{EnforceVerification: tt.enforce, Accounts: accounts{ownerID: {Verified: true}}}
		})
		_, _, err := b.Create(t.Context(), tt.actor, tt.waitlist, []byte(tt.body), "")
		if code(err) != tt.want {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
		if _, err := b.List(t.Context(), tt.actor, tt.waitlist); code(err) != tt.list {
			t.Errorf("%s: list: %v, want %q", tt.name, err, tt.list)
		}
	}
}

func code(err error) apierr.Code {
	if err == nil {
		return ""
	}
	return apierr.From(err).Code
}

func TestWhatABlastMustHave(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	list := c.list(0)
	long := strings.Repeat("x", 512<<10)
	for body, want := range map[string]string{
		news: "",
		`{"subject":"` + strings.Repeat("ä", 998) + `","html_body":"<p>","text_body":null}`: "",
		`{"subject":"a","html_body":"` + long + `"}`:                                        "",
		`{"text_body":"a"}`:              "subject",
		`{"subject":"","text_body":"a"}`: "subject",
		`{"subject":"` + strings.Repeat("ä", 999) + `","text_body":"a"}`: "subject",
		`{"subject":"a\nb","text_body":"a"}`:                             "subject",
		`{"subject":"a\rb","text_body":"a"}`:                             "subject",
		`{"subject":"a"}`:                                                "html_body",
		`{"subject":"a","html_body":"","text_body":""}`:                  "html_body",
		`{"subject":"a","html_body":7}`:                                  "html_body",
		`{"subject":"a","html_body":"a","text_body":7}`:                  "text_body",
		`{"subject":"a","html_body":"` + long + `x"}`:                    "html_body",
		`{"subject":"a","text_body":"` + long + `x"}`:                    "text_body",
		`{"subject":"a","html_body":"a\u0000"}`:                          "html_body",
		`{}`:                                                             "subject html_body",
		`{"subject":"a","text_body":"a","send_at":null,"draft":null}`:    "",
		`{"subject":"a","text_body":"a","send_at":"2026-12-01T09:00:00Z","segment":"x","filter":{},"test":true,"test_to":[],"draft":false}`: "" +
			"send_at segment filter test test_to draft",
		`{"subject":"a\nb","html_body":"` + long + `x","text_body":` + "7}": "subject html_body text_body",
	} {
		_, _, err := c.owners(nil).Create(t.Context(), paying(access.Owner, nil), list, []byte(body), "")
		var got []string
		for _, f := range fields(err) {
			got = append(got, f.Field)
		}
		if strings.Join(got, " ") != want || (err == nil) != (want == "") {
			t.Errorf("%.60s…: %v, want %q", body, err, want)
		}
	}
}

func fields(err error) []apierr.Field {
	if err == nil {
		return nil
	}
	return apierr.From(err).Fields
}

func TestARepeatedBlastIsTheSame(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	list := c.list(5)
	now := time.Now()
	clock := func() time.Time { return now }
	actor := paying(access.Owner, nil)
	running := make(chan struct{})
	var begun sync.Once
	slow := c.owners(func(cfg *messaging.BlastsConfig) {
		cfg.Wait, cfg.Wake = 10*time.Second, func() { begun.Do(func() { close(running) }) }
	})
	b := c.owners(func(cfg *messaging.BlastsConfig) { cfg.Now = clock })
	create := func(b *messaging.Blasts, body, key string) (messaging.Blast, bool, error) {
		return b.Create(t.Context(), actor, list, []byte(body), key)
	}
	first := make(chan messaging.Blast, 1)
	go func() {
		out, _, err := create(slow, news, "key")
		if err != nil {
			t.Error(err)
		}
		first <- out
	}()
	<-running
	if _, _, err := create(b, news, "key"); code(err) != apierr.Conflict || apierr.From(err).RetryAfter == 0 {
		t.Errorf("while the first is running: %v", err)
	}
	c.start(c)
	answer := <-first
	if answer.State != messaging.BlastSent || answer.Recipients != 5 {
		t.Errorf("%+v", answer)
	}
	again, replayed, err := create(b, news, "key")
	if err != nil || !replayed || again.ID != answer.ID || again.State != answer.State || again.Recipients != 5 {
		t.Errorf("%+v, %v, %v", again, replayed, err)
	}
	if _, _, err := create(b, strings.Replace(news, "News", "Old", 1), "key"); code(err) != apierr.Conflict {
		t.Errorf("another body: %v", err)
	}
	if _, _, err := create(b, news, "\n"); code(err) != apierr.ValidationError {
		t.Errorf("not a key: %v", err)
	}
	if other, replayed, err := create(b, news, "key 2"); err != nil || replayed || other.ID == answer.ID {
		t.Errorf("another key: %+v, %v, %v", other, replayed, err)
	}
	blasts, err := b.List(t.Context(), actor, list)
	if err != nil || len(blasts) != 2 || blasts[1].ID != answer.ID {
		t.Errorf("%+v, %v", blasts, err)
	}
	c.ended(blasts[0].ID, messaging.BlastSent, 5, 0)
	if got := c.received(); len(got) != 5 || got[person(1)] != 2 {
		t.Errorf("%v", got)
	}
}

// If the process dies before it answers, a repeated request gets the answer.
func TestABlastWhoseAnswerWasLostIsAnswered(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	n := messaging.NewBlast{
		ID: uuid.Must(uuid.NewV7()).String(), WaitlistID: c.list(2), OwnerID: ownerID, AccountID: ownerID,
		CreatedAt:    time.Now().Add(-time.Minute),
		BlastContent: messaging.BlastContent{Subject: "News", Text: "We are live"}, Key: "key",
	}
	n.Content = []byte(n.WaitlistID + "\n" + news)
	if _, _, _, err := c.blasts.Create(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	out, replayed, err := c.owners(nil).Create(t.Context(), paying(access.Owner, nil), n.WaitlistID, []byte(news), "key")
	if err != nil || !replayed || out.ID != n.ID || out.State != messaging.BlastQueued {
		t.Errorf("%+v, %v, %v", out, replayed, err)
	}
}

func TestATrialHasItsCap(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	now := time.Now().Truncate(time.Hour)
	b := c.owners(func(cfg *messaging.BlastsConfig) {
		cfg.Limits.MailsOnTrial, cfg.Now = 10, func() time.Time { return now }
	})
	trial := paying(access.Owner, func(_ *access.Actor, g *access.Grant) {
		g.Entitlement.Status, g.Entitlement.Trial = access.Trialing, true
	})
	send := func(actor access.Actor, n int64) error {
		_, _, err := b.Create(t.Context(), actor, c.list(n), []byte(news), "")
		return err
	}
	if err := send(trial, 11); code(err) != apierr.RateLimited || apierr.From(err).RetryAfter != 24*time.Hour {
		t.Errorf("11 of 10: %v", err)
	}
	if err := send(trial, 6); err != nil {
		t.Errorf("6 of 10: %v", err)
	}
	now = now.Add(time.Hour)
	if err := send(trial, 4); err != nil {
		t.Errorf("4 more: %v", err)
	}
	if err := send(trial, 1); code(err) != apierr.RateLimited || apierr.From(err).RetryAfter.Round(time.Minute) != 23*time.Hour {
		t.Errorf("1 more: %v", err)
	}
	if err := send(trial, 0); err != nil {
		t.Errorf("nobody: %v", err)
	}
	if err := send(paying(access.Owner, nil), 20); err != nil {
		t.Errorf("after the trial: %v", err)
	}
	now = now.Add(23*time.Hour + time.Second)
	if err := send(trial, 6); err != nil {
		t.Errorf("a day later: %v", err)
	}
}

// onceProvider accepts each idempotency key once, and can lose its answers.
type onceProvider struct {
	*crowd
	keys map[string]int // the number of mails by key
	lose func(call int) bool
}

// SendBatch implements messaging.BatchProvider.
func (o *onceProvider) SendBatch(_ context.Context, key string, mails []messaging.Mail) []error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls++
	errs := make([]error, len(mails))
	if n, ok := o.keys[key]; ok && len(mails) > n {
		o.Errorf("request %s had %d mails, now %d", key, n, len(mails))
	} else if !ok {
		for i, m := range mails {
			if o.reply != nil {
				errs[i] = o.reply(o.calls, m)
			}
			if errs[i] == nil {
				o.keys[key] = len(mails)
				o.mails = append(o.mails, m)
			}
		}
	}
	if o.lose != nil && o.lose(o.calls) {
		for i := range errs {
			errs[i] = errors.New("the connection broke")
		}
	}
	return errs
}

// After a lost answer, the blaster repeats the batch as the same request, even if a recipient has opted out
// in the meantime.
func TestABatchIsRequestedOnce(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	list := c.list(1050)
	o := &onceProvider{crowd: c, keys: map[string]int{}}
	c.suppressed[person(3)] = true
	o.lose = func(call int) bool {
		if call%2 == 1 {
			c.people[list][int64(100*call+1)] = false
		}
		return call%2 == 1
	}
	o.reply = func(_ int, m messaging.Mail) error {
		if m.To == person(5) {
			return &messaging.RefusedError{Reason: "in a batch"}
		}
		return nil
	}
	id := c.create(list)
	c.start(o)
	testenv.Eventually(c, "the blast ends", func() bool { return c.blast(id).State == messaging.BlastSent })
	for to, n := range c.received() {
		if n != 1 {
			t.Errorf("%s got %d", to, n)
		}
	}
	for n := range int64(1050) {
		if got := c.received()[person(n+1)]; got != 1 && n+1 != 3 && n+1 != 5 && c.people[list][n+1] {
			t.Errorf("%s got %d", person(n+1), got)
		}
	}
	if b := c.blast(id); b.Failed < 1 || b.Failed > 2 || b.Recipients < 1030 {
		t.Errorf("%+v", b)
	}
	if len(o.keys) != 11 {
		t.Errorf("%d requests", len(o.keys))
	}
	for key := range o.keys {
		if !strings.HasPrefix(key, id+":") || !strings.HasSuffix(key, ":0") {
			t.Errorf("key %s", key)
		}
	}
}

// The deferred mails of a batch are sent under another key, because the provider repeats its first answer
// under the first key.
func TestTheDeferredOfABatchAreAnotherRequest(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	o := &onceProvider{crowd: c, keys: map[string]int{}}
	tries := map[string]int{}
	o.reply = func(_ int, m messaging.Mail) error {
		tries[m.To]++
		if strings.HasPrefix(m.To, "p9") && tries[m.To] < 3 {
			return &messaging.DeferredError{Reason: "429"}
		}
		return nil
	}
	id := c.create(c.list(100))
	c.start(o)
	c.ended(id, messaging.BlastSent, 100, 0)
	c.once(100)
}
