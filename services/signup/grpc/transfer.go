package grpc

import (
	"google.golang.org/grpc"

	"waitlist.internal/libs/access"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	"waitlist.internal/services/signup"
)

// ExportSignups implements the service.
func (s *Admin) ExportSignups(r *signupv1.ExportSignupsRequest, out grpc.ServerStreamingServer[signupv1.ExportSignupsResponse]) error {
	return s.admin.Export(out.Context(), access.ActorFromProto(r.GetActor()), r.GetWaitlistId(), func(csv []byte) error {
		// Send copies csv before it returns.
		return out.Send(&signupv1.ExportSignupsResponse{Csv: csv})
	})
}

// ImportSignups implements the service.
func (s *Admin) ImportSignups(in grpc.ClientStreamingServer[signupv1.ImportSignupsRequest, signupv1.ImportSignupsResponse]) error {
	first, err := in.Recv()
	if err != nil {
		return err
	}
	res, err := s.admin.Import(in.Context(), access.ActorFromProto(first.GetActor()), first.GetWaitlistId(), func() ([]byte, error) {
		piece, err := in.Recv()
		return piece.GetBody(), err
	})
	if err != nil {
		return err
	}
	return in.SendAndClose(imported(res))
}

func imported(r signup.Imported) *signupv1.ImportSignupsResponse {
	out := &signupv1.ImportSignupsResponse{Imported: r.Imported, Skipped: r.Skipped}
	for _, e := range r.Errors {
		out.Errors = append(out.Errors, &signupv1.ImportError{Row: e.Row, Email: e.Email, Error: e.Message})
	}
	return out
}
