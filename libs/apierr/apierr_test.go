package apierr

import (
	"errors"
	"fmt"
	"testing"
)

func TestFrom(t *testing.T) {
	cause := errors.New("disk")
	for _, tt := range []struct {
		name string
		err  error
		code Code
		kind Kind
	}{
		{"own", New(NotFound, "no"), NotFound, Missing},
		{"wrapped", fmt.Errorf("read: %w", New(Conflict, "taken").WithCause(cause)), Conflict, Conflicting},
		{"second kind", New(DomainRestricted, "no").WithKind(Invalid), DomainRestricted, Invalid},
		{"anything else", cause, InternalError, Internal},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := From(tt.err)
			if e.Code != tt.code || e.Kind != tt.kind {
				t.Errorf("%+v", e)
			}
			if tt.code == InternalError && (!errors.Is(e, cause) || e.Message == cause.Error()) {
				t.Errorf("the cause belongs into the log alone: %+v", e)
			}
		})
	}
	if From(nil) != nil {
		t.Error("From(nil) is an error")
	}
}

func TestValidation(t *testing.T) {
	e := Validation(Field{"a", "This is bad."}, Field{"b", "This is bad, too."})
	if e.Code != ValidationError || e.Kind != Invalid || len(e.Fields) != 2 || e.Message != `Check the field "a". This is bad.` {
		t.Errorf("%+v", e)
	}
	// The With methods copy: an error that is shared does not change.
	if c := e.WithKind(Denied); e.Kind != Invalid || c.Kind != Denied {
		t.Error("WithKind changed its receiver")
	}
}
