// Package forms asks signup for the forms that pages show, and reports how often they
// were shown:
//
//	Get   a form that was asked for within the last second, else signup's: in full if
//	      its version changed, else only its count
//	Shown counts a view; twice a second signup gets the counts
//
// Both spare the rate limit, which is for signups.
package forms

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"
	"google.golang.org/protobuf/types/known/timestamppb"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/rpc"
	"waitlist.internal/libs/views"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
)

const (
	// fresh is how long a form is shown without asking whether it has changed.
	fresh = time.Second
	// Shown is the largest age of a form that is shown because signup does not answer.
	Shown = 5 * time.Second
	// Sent is the largest age for the answer to a form that a visitor sent.
	Sent = time.Hour
	// timeout bounds a call to signup, so that there is time left for the page.
	timeout = 2 * time.Second
	// maxForms and maxBytes bound the forms that are kept; maxBytes counts their JSON.
	maxForms, maxBytes = 10_000, 16 << 20
	// firstPerSecond and firstAtOnce bound the calls for forms that are not kept. Requests
	// with invented ids can use these up, but not overload signup.
	firstPerSecond, firstAtOnce = 500, 1000
)

// Forms keeps the forms that were shown lately.
type Forms struct {
	signup signupv1.FormServiceClient
	now    func() time.Time
	asking singleflight.Group
	first  *rate.Limiter

	// maxForms and maxBytes are the constants; tests lower them.
	maxForms, maxBytes int

	mu    sync.Mutex
	kept  map[string]kept
	bytes int
}

type kept struct {
	form    *Form
	version string
	bytes   int
	at      time.Time
}

// New returns forms that come from signup.
func New(signup signupv1.FormServiceClient, now func() time.Time) *Forms {
	return &Forms{
		signup: signup, now: now, first: rate.NewLimiter(firstPerSecond, firstAtOnce), maxForms: maxForms, maxBytes: maxBytes,
		kept: map[string]kept{},
	}
}

// Get returns the form of a waitlist, which the caller must not change. If signup does
// not answer, the form may be as old as age. Its errors are those of the interface:
// NOT_FOUND, RATE_LIMITED, INTERNAL_ERROR.
func (f *Forms) Get(ctx context.Context, id string, age time.Duration) (*Form, error) {
	if len(id) != 36 || uuid.Validate(id) != nil {
		return nil, apierr.New(apierr.NotFound, "There is no such waitlist.")
	}
	id = strings.ToLower(id)
	k, known := f.lookUp(id)
	if known && f.now().Sub(k.at) < fresh {
		return k.form, nil
	}
	// Concurrent visitors of a form share one call, which goes on if the first one leaves.
	answer := f.asking.DoChan(id, func() (any, error) { return f.fetch(context.WithoutCancel(ctx), id) })
	var err error
	select {
	case <-ctx.Done():
		err = ctx.Err()
	case a := <-answer:
		if a.Err == nil {
			return a.Val.(*Form), nil // the only type returned
		}
		err = a.Err
	}
	if apierr.Is(err, apierr.NotFound) || !known || f.now().Sub(k.at) > age {
		return nil, err
	}
	return k.form, nil
}

func (f *Forms) lookUp(id string) (kept, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k, ok := f.kept[id]
	return k, ok
}

// fetch asks signup for a form, or whether the one that is kept has changed.
func (f *Forms) fetch(ctx context.Context, id string) (*Form, error) {
	k, known := f.lookUp(id)
	if !known && !f.first.Allow() {
		return nil, apierr.New(apierr.RateLimited, "Too many requests. Please try again in a moment.").WithRetryAfter(time.Second)
	}
	asked := f.now()
	r, err := f.signup.GetForm(ctx, &signupv1.GetFormRequest{WaitlistId: id, KnownVersion: k.version}, rpc.Deadline(timeout))
	if apierr.Is(err, apierr.NotFound) {
		f.keep(id, kept{})
	}
	if err != nil {
		return nil, err
	}
	form := new(Form)
	switch {
	case len(r.GetConfigJson()) > 0:
		if err := json.Unmarshal(r.GetConfigJson(), form); err != nil {
			return nil, fmt.Errorf("decode the form of %s: %w", id, err)
		}
		k.bytes = len(r.GetConfigJson())
	case known:
		*form = *k.form
	default:
		return nil, fmt.Errorf("signup sent no form of %s", id)
	}
	form.Count = r.SignupCount
	f.keep(id, kept{form, r.GetVersion(), k.bytes, asked})
	return form, nil
}

// keep replaces a form, and drops others if there are too many; if k has no form, it
// only drops the form of id.
func (f *Forms) keep(id string, k kept) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop(id)
	if k.form == nil {
		return
	}
	for other := range f.kept { // random ones
		if len(f.kept) < f.maxForms && f.bytes+k.bytes <= f.maxBytes {
			break
		}
		f.drop(other)
	}
	f.kept[id] = k
	f.bytes += k.bytes
}

func (f *Forms) drop(id string) {
	f.bytes -= f.kept[id].bytes
	delete(f.kept, id)
}

// Reports is the store of views at signup.
type Reports struct{ Signup signupv1.FormServiceClient }

// CountViews implements views.Store.
func (r Reports) CountViews(ctx context.Context, counts []views.Count) error {
	req := &signupv1.CountViewsRequest{}
	for _, c := range counts {
		req.Counts = append(req.Counts, &signupv1.ViewCount{
			Id: c.ID, WaitlistId: c.WaitlistID, Views: c.Views, At: timestamppb.New(c.At),
		})
	}
	_, err := r.Signup.CountViews(ctx, req)
	return err
}
