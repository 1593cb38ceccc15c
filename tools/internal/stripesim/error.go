package stripesim

import (
	"fmt"
	"net/http"
)

const (
	invalidRequest = "invalid_request_error"
	cardError      = "card_error"
	missing        = "resource_missing"
)

// apiError is an error in the provider's format.
type apiError struct {
	Status        int    `json:"-"`
	Type          string `json:"type"`
	Code          string `json:"code,omitempty"`
	DeclineCode   string `json:"decline_code,omitempty"`
	Param         string `json:"param,omitempty"`
	Message       string `json:"message"`
	Charge        string `json:"charge,omitempty"`
	RequestLogURL string `json:"request_log_url,omitempty"`
}

func (e *apiError) Error() string { return e.Type + ": " + e.Message }

// invalid returns a 400 error that names the parameter.
func invalid(param, format string, args ...any) error {
	return &apiError{
		Status: http.StatusBadRequest, Type: invalidRequest, Param: param, Message: fmt.Sprintf(format, args...),
	}
}

// noSuch returns the error for a missing object: 404 if the path names it, else 400.
func noSuch(kind, id, param string) error {
	e := &apiError{
		Status: http.StatusBadRequest, Type: invalidRequest, Code: missing, Param: param,
		Message: fmt.Sprintf("No such %s: '%s'", kind, id),
	}
	if param == "id" {
		e.Status = http.StatusNotFound
	}
	return e
}

// declined returns the error for a declined card.
func declined() *apiError {
	return &apiError{
		Status: http.StatusPaymentRequired, Type: cardError, Code: "card_declined",
		DeclineCode: "generic_decline", Message: "Your card was declined.",
	}
}
