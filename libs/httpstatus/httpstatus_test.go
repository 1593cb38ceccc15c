package httpstatus_test

import (
	"testing"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/httpstatus"
)

func TestStatuses(t *testing.T) {
	for code, want := range map[apierr.Code]int{
		apierr.ValidationError: 400, apierr.InvalidBody: 400, apierr.InvalidToken: 400, apierr.PaymentRequired: 400,
		apierr.AuthenticationRequired: 401,
		apierr.Forbidden:              403, apierr.TierRequired: 403, apierr.TrialExpired: 403, apierr.EmailNotVerified: 403,
		apierr.WaitlistClosed: 403, apierr.DomainRestricted: 403,
		apierr.NotFound: 404,
		apierr.Conflict: 409, apierr.Duplicate: 409,
		apierr.RateLimited:          429,
		apierr.InternalError:        500,
		apierr.ExternalServiceError: 502,
		"from a later version":      500,
	} {
		if got := httpstatus.Of(apierr.New(code, "").Kind); got != want {
			t.Errorf("%s: %d, want %d", code, got, want)
		}
	}
	for k := apierr.Internal; k <= apierr.Abandoned; k++ {
		if back, ok := httpstatus.Kind(httpstatus.Of(k)); !ok || back != k {
			t.Errorf("kind %d becomes %d", k, back)
		}
	}
	if k, ok := httpstatus.Kind(418); ok {
		t.Errorf("418 is of kind %d", k)
	}
}
