package rpc

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"waitlist.internal/libs/apierr"
	errorsv1 "waitlist.internal/proto/gen/waitlist/errors/v1"
)

// Replicas of the release before this one read the HTTP status from the detail.
func TestDetailCarriesHTTPStatus(t *testing.T) {
	s, _ := status.FromError(toStatus(apierr.New(apierr.DomainRestricted, "No.").WithKind(apierr.Invalid)))
	if d, ok := s.Details()[0].(*errorsv1.Error); !ok || d.GetHttpStatus() != 400 || d.GetCode() != "DOMAIN_RESTRICTED" {
		t.Errorf("detail %v", s.Details())
	}
}

// Replicas of a later release may send codes that this one does not know.
func TestUnknownCodeKeepsItsStatus(t *testing.T) {
	for status, want := range map[int32]apierr.Kind{409: apierr.Conflicting, 418: apierr.Internal, 0: apierr.Internal} {
		if got := apierr.From(fromStatus(detailed(t, status))); got.Kind != want || got.Code != "LATER" {
			t.Errorf("HTTP status %d: %+v", status, got)
		}
	}
}

func detailed(t *testing.T, httpStatus int32) error {
	t.Helper()
	s, err := status.New(codes.Internal, "x").WithDetails(&errorsv1.Error{Code: "LATER", HttpStatus: httpStatus, Message: "x"})
	if err != nil {
		t.Fatal(err)
	}
	return s.Err()
}
