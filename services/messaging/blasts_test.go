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
	"waitlist.internal/services/messaging/blasts"
	"waitlist.internal/services/messaging/mails"
)

// owners requests the blasts of a crowd.
func (c *crowd) owners(change func(*blasts.Config)) *blasts.Service {
	cfg := blasts.Config{
		Store: c.blasts, Lists: c, Wake: func() {}, Log: slog.New(slog.NewTextHandler(c.Output(), nil)),
		Now: time.Now, Wait: 20 * time.Millisecond,
	}
	if change != nil {
		change(&cfg)
	}
	return blasts.New(cfg)
}

// news is a request for a blast to a waitlist.
func news(waitlistID, key string) blasts.Request {
	return blasts.Request{
		Content: blasts.Content{Subject: "News", Text: "We are live"}, WaitlistID: waitlistID, OwnerID: ownerID,
		AccountID: ownerID, Role: access.Owner, Key: key, Fingerprint: []byte("News"),
	}
}

// forgetful is a store that fails after it has created a blast.
type forgetful struct{ blasts.Store }

func (forgetful) Blast(context.Context, string) (blasts.Blast, error) {
	return blasts.Blast{}, errors.New("away")
}

// A blast that was created is never answered with an error: a caller that repeats the request would send it twice.
func TestABlastThatWasMadeIsNoError(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	list := c.list(1)
	out, _, err := c.owners(func(cfg *blasts.Config) { cfg.Store = forgetful{c.blasts} }).Create(t.Context(),
		news(list, "key"))
	if err != nil || out.State != blasts.Queued || out.Recipients != 0 {
		t.Fatalf("%+v, %v", out, err)
	}
	again, replayed, err := c.owners(nil).Create(t.Context(), news(list, "key"))
	if err != nil || !replayed || again.ID != out.ID || again.State != blasts.Queued {
		t.Errorf("%+v, %v, %v", again, replayed, err)
	}
}

func code(err error) apierr.Code {
	if err == nil {
		return ""
	}
	return apierr.From(err).Code
}

func TestARepeatedBlastIsTheSame(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	list := c.list(5)
	now := time.Now()
	clock := func() time.Time { return now }
	running := make(chan struct{})
	var begun sync.Once
	slow := c.owners(func(cfg *blasts.Config) {
		cfg.Wait, cfg.Wake = 10*time.Second, func() { begun.Do(func() { close(running) }) }
	})
	b := c.owners(func(cfg *blasts.Config) { cfg.Now = clock })
	create := func(b *blasts.Service, key string) (blasts.Blast, bool, error) {
		return b.Create(t.Context(), news(list, key))
	}
	first := make(chan blasts.Blast, 1)
	go func() {
		out, _, err := create(slow, "key")
		if err != nil {
			t.Error(err)
		}
		first <- out
	}()
	<-running
	if _, _, err := create(b, "key"); code(err) != apierr.Conflict || apierr.From(err).RetryAfter == 0 {
		t.Errorf("while the first is running: %v", err)
	}
	c.start(c)
	answer := <-first
	if answer.State != blasts.Sent || answer.Recipients != 5 {
		t.Errorf("%+v", answer)
	}
	again, replayed, err := create(b, "key")
	if err != nil || !replayed || again.ID != answer.ID || again.State != answer.State || again.Recipients != 5 {
		t.Errorf("%+v, %v, %v", again, replayed, err)
	}
	other := news(list, "key")
	other.Fingerprint = []byte("Old")
	if _, _, err := b.Create(t.Context(), other); code(err) != apierr.Conflict {
		t.Errorf("another body: %v", err)
	}
	if _, _, err := b.Create(t.Context(), news(c.list(1), "key")); code(err) != apierr.Conflict {
		t.Errorf("another waitlist: %v", err)
	}
	if _, _, err := create(b, "\n"); code(err) != apierr.ValidationError {
		t.Errorf("not a key: %v", err)
	}
	if other, replayed, err := create(b, "key 2"); err != nil || replayed || other.ID == answer.ID {
		t.Errorf("another key: %+v, %v, %v", other, replayed, err)
	}
	listed, err := b.List(t.Context(), list)
	if err != nil || len(listed) != 2 || listed[1].ID != answer.ID {
		t.Errorf("%+v, %v", listed, err)
	}
	c.ended(listed[0].ID, blasts.Sent, 5, 0)
	if got := c.received(); len(got) != 5 || got[person(1)] != 2 {
		t.Errorf("%v", got)
	}
}

// If the process dies before it answers, a repeated request gets the answer.
func TestABlastWhoseAnswerWasLostIsAnswered(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	n := blasts.NewBlast{
		Request: news(c.list(2), "key"), ID: uuid.Must(uuid.NewV7()).String(), CreatedAt: time.Now().Add(-time.Minute),
	}
	if _, _, _, err := c.blasts.Create(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	out, replayed, err := c.owners(nil).Create(t.Context(), n.Request)
	if err != nil || !replayed || out.ID != n.ID || out.State != blasts.Queued {
		t.Errorf("%+v, %v, %v", out, replayed, err)
	}
}

func TestATrialHasItsCap(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	now := time.Now().Truncate(time.Hour)
	b := c.owners(func(cfg *blasts.Config) {
		cfg.Limits.MailsOnTrial, cfg.Now = 10, func() time.Time { return now }
	})
	send := func(trial bool, n int64) error {
		r := news(c.list(n), "")
		r.Trial = trial
		_, _, err := b.Create(t.Context(), r)
		return err
	}
	if err := send(true, 11); code(err) != apierr.RateLimited || apierr.From(err).RetryAfter != 24*time.Hour {
		t.Errorf("11 of 10: %v", err)
	}
	if err := send(true, 6); err != nil {
		t.Errorf("6 of 10: %v", err)
	}
	now = now.Add(time.Hour)
	if err := send(true, 4); err != nil {
		t.Errorf("4 more: %v", err)
	}
	if err := send(true, 1); code(err) != apierr.RateLimited || apierr.From(err).RetryAfter.Round(time.Minute) != 23*time.Hour {
		t.Errorf("1 more: %v", err)
	}
	if err := send(true, 0); err != nil {
		t.Errorf("nobody: %v", err)
	}
	if err := send(false, 20); err != nil {
		t.Errorf("after the trial: %v", err)
	}
	now = now.Add(23*time.Hour + time.Second)
	if err := send(true, 6); err != nil {
		t.Errorf("a day later: %v", err)
	}
}

// onceProvider accepts each idempotency key once, and can lose its answers.
type onceProvider struct {
	*crowd
	keys map[string]int // the number of mails by key
	lose func(call int) bool
}

// SendBatch implements mails.BatchProvider.
func (o *onceProvider) SendBatch(_ context.Context, key string, mails []mails.Mail) []error {
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
	o.reply = func(_ int, m mails.Mail) error {
		if m.To == person(5) {
			return &mails.RefusedError{Reason: "in a batch"}
		}
		return nil
	}
	id := c.create(list)
	c.start(o)
	testenv.Eventually(c, "the blast ends", func() bool { return c.blast(id).State == blasts.Sent })
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
	o.reply = func(_ int, m mails.Mail) error {
		tries[m.To]++
		if strings.HasPrefix(m.To, "p9") && tries[m.To] < 3 {
			return &mails.DeferredError{Reason: "429"}
		}
		return nil
	}
	id := c.create(c.list(100))
	c.start(o)
	c.ended(id, blasts.Sent, 100, 0)
	c.once(100)
}
