package apierr

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
)

func TestFrom(t *testing.T) {
	cause := errors.New("disk")
	for _, tt := range []struct {
		name   string
		err    error
		code   Code
		status int
	}{
		{"own", New(NotFound, "no"), NotFound, http.StatusNotFound},
		{"wrapped", fmt.Errorf("read: %w", New(Conflict, "taken").WithCause(cause)), Conflict, http.StatusConflict},
		{"second status", New(DomainRestricted, "no").WithStatus(400), DomainRestricted, http.StatusBadRequest},
		{"anything else", cause, InternalError, http.StatusInternalServerError},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := From(tt.err)
			if e.Code != tt.code || e.Status != tt.status {
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
	e := Validation(Field{"a", "a is bad"}, Field{"b", "b is bad"})
	if e.Code != ValidationError || e.Status != 400 || len(e.Fields) != 2 || e.Message != "a is bad" {
		t.Errorf("%+v", e)
	}
	// With… make copies: shared errors stay as they are.
	if c := e.WithStatus(418); e.Status != 400 || c.Status != 418 {
		t.Error("WithStatus changed its receiver")
	}
}
