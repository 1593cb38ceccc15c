package signup_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/views"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	"waitlist.internal/services/signup/grpc"
	"waitlist.internal/services/signup/join"
	"waitlist.internal/services/signup/waitlist"
)

// TestGetForm: the version follows name, settings and the owner's plan; with the present
// one comes no form, but the count.
func TestGetForm(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	forms := &grpc.Forms{Service: w.svc}
	for i := range 11 {
		w.signUp(t, fmt.Sprintf("a%d@example.com", i), "")
	}
	known := ""
	changed := func() join.FormConfig {
		t.Helper()
		ask := func() *signupv1.GetFormResponse {
			r, err := forms.GetForm(t.Context(), &signupv1.GetFormRequest{WaitlistId: w.list.ID, KnownVersion: known})
			if err != nil {
				t.Fatal(err)
			}
			if r.GetSignupCount() != 11 {
				t.Errorf("count %d", r.GetSignupCount())
			}
			return r
		}
		r := ask()
		var c join.FormConfig
		if err := json.Unmarshal(r.GetConfigJson(), &c); err != nil || c.SignupCount != nil || r.GetVersion() == known {
			t.Fatalf("%v: %s", err, r)
		}
		known = r.GetVersion()
		if r := ask(); len(r.GetConfigJson()) > 0 || r.GetVersion() != known {
			t.Errorf("unchanged, but %s", r)
		}
		return c
	}
	if c := changed(); c.Name != "Launch" || c.HidePosition == nil {
		t.Errorf("%+v", c)
	}
	w.exec(t, `UPDATE waitlist SET settings = '{"status": "closed"}', version = version + 1 WHERE id = $1`, w.list.ID)
	if c := changed(); c.Status != waitlist.Closed {
		t.Errorf("%+v", c)
	}
	w.exec(t, `UPDATE owner SET tier = 'basic', version = version + 1 WHERE id = $1`, w.owner.AccountID)
	if c := changed(); c.HidePosition != nil {
		t.Errorf("%+v", c)
	}
	w.exec(t, `UPDATE waitlist SET deleted_at = now() WHERE id = $1`, w.list.ID)
	for _, id := range []string{w.list.ID, uuid.NewString(), "x"} {
		_, err := forms.GetForm(t.Context(), &signupv1.GetFormRequest{WaitlistId: id, KnownVersion: known})
		if !apierr.Is(err, apierr.NotFound) {
			t.Errorf("%s: %v", id, err)
		}
	}
}

// TestReportedViews: a report is taken whole or refused, and ignored where views are not
// counted.
func TestReportedViews(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	count := func(change func(*signupv1.ViewCount)) *signupv1.ViewCount {
		c := &signupv1.ViewCount{Id: uuid.NewString(), WaitlistId: w.list.ID, Views: 3, At: timestamppb.New(time.Now())}
		change(c)
		return c
	}
	right := func(*signupv1.ViewCount) {}
	published := func() (n int) {
		if err := w.pool.QueryRow(t.Context(), `SELECT count(*) FROM outbox WHERE key = $1`, w.list.ID).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	forms := &grpc.Forms{Service: w.svc, Views: w.store}
	report := func(to *grpc.Forms, counts ...*signupv1.ViewCount) error {
		_, err := to.CountViews(t.Context(), &signupv1.CountViewsRequest{Counts: counts})
		return err
	}
	for name, wrong := range map[string]func(*signupv1.ViewCount){
		"no id": func(c *signupv1.ViewCount) { c.Id = "" }, "no list": func(c *signupv1.ViewCount) { c.WaitlistId = "x" },
		"nothing": func(c *signupv1.ViewCount) { c.Views = 0 }, "no time": func(c *signupv1.ViewCount) { c.At = nil },
	} {
		if err := report(forms, count(right), count(wrong)); !apierr.Is(err, apierr.ValidationError) {
			t.Errorf("%s: %v", name, err)
		}
	}
	many := make([]*signupv1.ViewCount, views.AtOnce+1)
	for i := range many {
		many[i] = count(right)
	}
	for _, counts := range [][]*signupv1.ViewCount{nil, many} {
		if err := report(forms, counts...); !apierr.Is(err, apierr.ValidationError) {
			t.Errorf("%d counts: %v", len(counts), err)
		}
	}
	if err := report(forms, count(right), count(right)); err != nil || published() != 2 {
		t.Errorf("%v, %d published", err, published())
	}
}
