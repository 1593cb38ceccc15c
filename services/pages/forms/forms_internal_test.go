package forms

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"waitlist.internal/libs/apierr"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConsent(t *testing.T) {
	for text, want := range map[string]string{
		"":               "[]",
		"I agree.":       "[{I agree. }]",
		"[a](https://b)": "[{a https://b}]",
		"See [a](https://b/c?d=e) or [m](mailto:x@y.z).": "[{See  } {a https://b/c?d=e} { or  } {m mailto:x@y.z} {. }]",
		"[a](javascript:alert(1)) [b](data:x) [c](//d)":  "[{[a](javascript:alert(1)) [b](data:x) [c](//d) }]",
		`[a](https://b" onclick="x)`:                     `[{[a](https://b" onclick="x) }]`,
	} {
		if got := fmt.Sprint((&Form{ConsentText: text}).Consent()); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// service stands for signup.
type service struct {
	signupv1.FormServiceClient

	mu      sync.Mutex
	name    string
	count   int64
	version int
	err     error
	// took is how long an answer takes.
	took                time.Duration
	asked, full, closed int
}

func (s *service) GetForm(
	ctx context.Context, r *signupv1.GetFormRequest, _ ...grpc.CallOption,
) (*signupv1.GetFormResponse, error) {
	if s.took > 0 {
		<-time.After(s.took)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if ctx.Err() != nil {
		s.closed++
	}
	if s.err != nil {
		return nil, s.err
	}
	out := &signupv1.GetFormResponse{Version: fmt.Sprint(s.version), SignupCount: new(s.count)}
	if out.Version != r.GetKnownVersion() {
		s.full++
		out.ConfigJson = fmt.Appendf(nil, `{"waitlist_id":%q,"name":%q,"status":"open"}`, r.GetWaitlistId(), s.name)
	}
	return out, nil
}

func (s *service) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func pause(d time.Duration) { <-time.After(d) }

const list = "0193d4a2-5c1e-7a41-8000-00000000000a"

// TestVersions: a form is asked for once a second, its settings only when they changed.
func TestVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{name: "Kites", count: 11, version: 1}
		f := New(s, time.Now)
		want := func(name string, count int64, asked, full int) {
			t.Helper()
			for _, id := range []string{list, strings.ToUpper(list)} {
				form, err := f.Get(t.Context(), id, Shown)
				if err != nil || form.Name != name || *form.Count != count || s.asked != asked || s.full != full {
					t.Errorf("%+v, %v; asked %d times, %d in full", form, err, s.asked, s.full)
				}
			}
		}
		want("Kites", 11, 1, 1)
		s.set(func() { s.count = 12; s.name = "Balloons" })
		want("Kites", 11, 1, 1)
		pause(fresh)
		want("Kites", 12, 2, 1)
		s.set(func() { s.version = 2 })
		pause(fresh)
		want("Balloons", 12, 3, 2)
	})
}

// TestAway: while signup is away a form is shown for 5 seconds and serves answers for
// longer; one that is gone is gone at once.
func TestAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{version: 1}
		f := New(s, time.Now)
		get := func(age time.Duration) apierr.Code {
			if _, err := f.Get(t.Context(), list, age); err != nil {
				return apierr.From(err).Code
			}
			return ""
		}
		want := func(shown, sent apierr.Code) {
			t.Helper()
			if a, b := get(Shown), get(Sent); a != shown || b != sent {
				t.Errorf("%q and %q, want %q and %q", a, b, shown, sent)
			}
		}
		want("", "")
		s.set(func() { s.err = errors.New("away") })
		pause(4 * time.Second)
		want("", "")
		pause(2 * time.Second)
		want(apierr.InternalError, "")
		s.set(func() { s.err = apierr.New(apierr.NotFound, "Gone.") })
		want(apierr.NotFound, apierr.NotFound)
		s.set(func() { s.err = errors.New("away") })
		want(apierr.InternalError, apierr.InternalError)
		if len(f.kept) != 0 || f.bytes != 0 {
			t.Errorf("keeps %d forms with %d bytes", len(f.kept), f.bytes)
		}
	})
}

// TestOnce: many visitors at once are one question, and the first one's leaving is nobody
// else's.
func TestOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{version: 1, took: 100 * time.Millisecond}
		f := New(s, time.Now)
		leaving, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			if _, err := f.Get(leaving, list, Shown); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		synctest.Wait()
		for range 100 {
			all.Go(func() {
				if _, err := f.Get(t.Context(), list, Shown); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		leave()
		all.Wait()
		if s.asked != 1 || s.closed != 0 {
			t.Errorf("asked %d times, %d were closed", s.asked, s.closed)
		}
	})
}

// TestBounds: neither ids that are made up nor large forms take more than their share.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := apierr.New(apierr.NotFound, "Gone.")
		s := &service{version: 1, err: gone}
		f := New(s, time.Now)
		for _, id := range []string{"", "x", "{" + list + "}", strings.ReplaceAll(list, "-", ""), "urn:uuid:" + list} {
			if _, err := f.Get(t.Context(), id, Shown); !apierr.Is(err, apierr.NotFound) {
				t.Errorf("%s: %v", id, err)
			}
		}
		if s.asked != 0 {
			t.Errorf("asked %d times for what is no id", s.asked)
		}
		busy := 0
		for range firstAtOnce + 10 {
			if _, err := f.Get(t.Context(), uuid.NewString(), Shown); apierr.Is(err, apierr.RateLimited) {
				busy++
			}
		}
		if busy != 10 || s.asked != firstAtOnce {
			t.Errorf("refused %d, asked %d times", busy, s.asked)
		}

		f.maxForms, f.maxBytes = 50, 20_000
		s.set(func() { s.err = nil; s.name = strings.Repeat("x", 1000) })
		for range 100 {
			pause(time.Second / firstPerSecond)
			if _, err := f.Get(t.Context(), uuid.NewString(), Shown); err != nil {
				t.Fatal(err)
			}
			if sum := sumBytes(f); f.bytes > f.maxBytes || sum != f.bytes {
				t.Fatalf("keeps %d bytes, says %d", sum, f.bytes)
			}
		}
		s.set(func() { s.name = "" })
		for range 2 * f.maxForms {
			pause(time.Second / firstPerSecond)
			if _, err := f.Get(t.Context(), uuid.NewString(), Shown); err != nil {
				t.Fatal(err)
			}
		}
		if len(f.kept) != f.maxForms {
			t.Errorf("keeps %d forms", len(f.kept))
		}
	})
}

func sumBytes(f *Forms) (n int) {
	for _, k := range f.kept {
		n += k.bytes
	}
	return n
}
