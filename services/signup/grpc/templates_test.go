package grpc_test

import (
	"context"
	"crypto/rand"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/rpc"
	"waitlist.internal/libs/testenv"
	messagingv1 "waitlist.internal/proto/gen/waitlist/messaging/v1"
	"waitlist.internal/services/signup/grpc"
	"waitlist.internal/services/signup/waitlist"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const ownerID = "0193d4a2-5c1e-7a41-8000-000000000001"

// messaging stands for the service; it knows no template of the type offboarding.
type messaging struct {
	messagingv1.UnimplementedMessagingServiceServer
	t *testing.T
}

func (m messaging) CheckTemplates(_ context.Context, r *messagingv1.CheckTemplatesRequest) (*messagingv1.CheckTemplatesResponse, error) {
	if r.GetOwnerId() != ownerID {
		m.t.Errorf("owner %s", r.GetOwnerId())
	}
	return &messagingv1.CheckTemplatesResponse{Unknown: slices.DeleteFunc(r.GetTemplates(), func(t *messagingv1.TemplateRef) bool {
		return t.GetTemplateType() != "offboarding"
	})}, nil
}

// dial returns a client of whatever is at an address, as signup, and the keys
// that know it.
func dial(t *testing.T, address string) (grpc.Templates, rpc.Keys) {
	t.Helper()
	seed := make([]byte, 32)
	_, _ = rand.Read(seed)
	id, err := rpc.NewIdentity("signup", seed)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := rpc.Dial(address, id, "messaging")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return grpc.Templates{Messaging: messagingv1.NewMessagingServiceClient(conn)}, rpc.Keys{"signup": {id.Public()}}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestUnknownTemplates(t *testing.T) {
	t.Parallel()
	l := listen(t)
	templates, keys := dial(t, l.Addr().String())
	server := rpc.NewServer("messaging", keys, slog.New(slog.DiscardHandler))
	messagingv1.RegisterMessagingServiceServer(server, messaging{t: t})
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	t.Cleanup(func() { server.Stop(); serving.Wait() })

	gone := waitlist.Assignment{Mail: "offboarding", TemplateID: "b"}
	unknown, err := templates.Unknown(t.Context(), ownerID, []waitlist.Assignment{{Mail: "signup_confirmation", TemplateID: "a"}, gone})
	if err != nil || !slices.Equal(unknown, []waitlist.Assignment{gone}) {
		t.Errorf("%v, %v", unknown, err)
	}
}

// TestNobodyToAsk: the answer says when to try again, and comes while the
// request still has time.
func TestNobodyToAsk(t *testing.T) {
	t.Parallel()
	l := listen(t)
	templates, _ := dial(t, l.Addr().String())
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	_, err := templates.Unknown(t.Context(), ownerID, []waitlist.Assignment{{Mail: "offboarding", TemplateID: "b"}})
	if e := apierr.From(err); e == nil || e.Code != apierr.InternalError || e.RetryAfter <= 0 {
		t.Errorf("%v", err)
	}
	if took := time.Since(start); took > rpc.DefaultDeadline {
		t.Errorf("after %s", took)
	}
}
