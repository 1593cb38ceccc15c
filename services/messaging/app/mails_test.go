package app_test

import (
	"context"
	"log/slog"
	"net"
	stdmail "net/mail"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	kafkago "github.com/segmentio/kafka-go"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/rpc"
	"waitlist.internal/libs/testenv"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
)

// signups stands in for signup, with one waitlist.
type signups struct {
	signupv1.UnimplementedSignupServiceServer
	waitlistID string

	mu     sync.Mutex
	about  *signupv1.GetMailingResponse
	people map[int64]*signupv1.MailedSignup
}

// GetMailing implements the service.
func (s *signups) GetMailing(_ context.Context, r *signupv1.GetMailingRequest) (*signupv1.GetMailingResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.GetWaitlistId() != s.waitlistID {
		return nil, apierr.NotFoundf("There is no such waitlist.")
	}
	a := s.about
	return &signupv1.GetMailingResponse{
		OwnerId:            a.GetOwnerId(),
		WaitlistName:       a.GetWaitlistName(),
		Pro:                a.GetPro(),
		SignupConfirmation: a.GetSignupConfirmation(),
		ReferralMilestone:  a.GetReferralMilestone(),
		Offboarding:        a.GetOffboarding(),
		NotifyReferrer:     a.GetNotifyReferrer(),
		ReferralMilestones: a.GetReferralMilestones(),
		Signup:             s.people[r.GetNumber()],
		Offboarded:         r.GetDepartedEmail() == "gone@example.com",
	}, nil
}

// serve runs signups and returns its address.
func (s *signups) serve(t *testing.T) string {
	t.Helper()
	srv := rpc.NewServer("signup", keys(t), slog.New(slog.NewTextHandler(t.Output(), nil)))
	signupv1.RegisterSignupServiceServer(srv, s)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(listener) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// Every kind of mail about signups gets from its event into the folder.
func TestMailsAboutSignups(t *testing.T) {
	cfg, dir, env := environ(t)
	ownerID := uuid.NewString()
	s := &signups{
		waitlistID: uuid.NewString(),
		about: &signupv1.GetMailingResponse{
			OwnerId:            ownerID,
			WaitlistName:       "Launch",
			Pro:                true,
			NotifyReferrer:     true,
			ReferralMilestones: []int64{5},
		},
		people: map[int64]*signupv1.MailedSignup{
			1: {Number: 1, Email: "ann@example.com", FirstName: "Ann", Position: 3, ReferralCount: 5, ReferralToken: strings.Repeat("a", 32)},
			2: {Number: 2, Email: "bob@example.com", EmailOptOut: true},
		},
	}
	start(t, append(env, "SIGNUP_GRPC="+s.serve(t)))
	var url string
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "POSTGRES_URL="); ok {
			url = v
		}
	}
	pool, err := pg.Open(t.Context(), url, "messaging", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	template := func(kind string) string {
		t.Helper()
		id := uuid.Must(uuid.NewV7()).String()
		if _, err := pool.Exec(t.Context(), `
			INSERT INTO template (id, owner_id, template_type, name, subject, html_body, text_body, created_at)
			VALUES ($1, $2, $3, '', $3 || ' for {{first_name}}', '', '{{position}} {{milestone}}', now())`, id, ownerID, kind); err != nil {
			t.Fatal(err)
		}
		return id
	}
	s.about.SignupConfirmation, s.about.ReferralMilestone, s.about.Offboarding = template(
		"signup_confirmation",
	), template(
		"referral_milestone",
	), template(
		"offboarding",
	)

	w := kafka.NewWriter(cfg)
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	created := func(number int64) kafkago.Message {
		return message(t, kafka.SignupsTopic, &eventv1.Event{Payload: &eventv1.Event_SignupCreated{SignupCreated: &eventv1.SignupCreated{
			WaitlistId: s.waitlistID, OwnerId: ownerID, Number: number, Email: "somebody@example.com", Confirmation: true,
		}}})
	}
	credited := func(number int64) kafkago.Message {
		return message(t, kafka.SignupsTopic, &eventv1.Event{Payload: &eventv1.Event_ReferralCredited{ReferralCredited: &eventv1.ReferralCredited{
			WaitlistId:        s.waitlistID,
			OwnerId:           ownerID,
			Number:            number,
			ReferralCount:     5,
			NotifyReferrer:    true,
			SmsNotifyReferrer: true,
			Milestone:         5,
		}}})
	}
	removed := func(number int64, reason eventv1.RemovalReason) kafkago.Message {
		return message(t, kafka.SignupsTopic, &eventv1.Event{Payload: &eventv1.Event_SignupRemoved{SignupRemoved: &eventv1.SignupRemoved{
			WaitlistId:  s.waitlistID,
			OwnerId:     ownerID,
			Number:      number,
			Reason:      reason,
			Email:       "gone@example.com",
			FirstName:   "Gus",
			Offboarding: true,
		}}})
	}
	msgs := []kafkago.Message{
		created(1), created(2), created(3), credited(1), credited(2), credited(1),
		removed(4, eventv1.RemovalReason_REMOVAL_REASON_ADMIN), removed(5, eventv1.RemovalReason_REMOVAL_REASON_OWN_REQUEST),
	}
	testenv.Eventually(t, "written", func() bool { return w.WriteMessages(t.Context(), append(msgs, msgs...)...) == nil })
	testenv.Eventually(t, "worked off", func() bool {
		var open, inbox int
		if err := pool.QueryRow(
			t.Context(),
			"SELECT (SELECT count(*) FROM sent_mail WHERE state = 'queued'), (SELECT count(*) FROM inbox)",
		).Scan(
			&open,
			&inbox,
		); err != nil {
			t.Fatal(err)
		}
		return open == 0 && inbox == len(msgs)-1 // the last one asks for nothing
	})
	got := map[string]int{}
	names, err := filepath.Glob(filepath.Join(dir, "*.eml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		m, err := stdmail.ReadMessage(strings.NewReader(string(b)))
		if err != nil {
			t.Fatal(err)
		}
		got[m.Header.Get("To")+" "+m.Header.Get("Subject")]++
	}
	want := []string{
		"<ann@example.com> signup_confirmation for Ann",
		"<bob@example.com> signup_confirmation for",
		"<ann@example.com> Somebody joined Launch through your link",
		"<ann@example.com> referral_milestone for Ann",
		"<gone@example.com> offboarding for Gus",
	}
	for _, m := range want {
		if got[m] != 1 {
			t.Errorf("%d mails %q", got[m], m)
		}
	}
	if len(names) != len(want) {
		t.Errorf("mails: %v", got)
	}
	var addresses int
	if err := pool.QueryRow(
		t.Context(),
		"SELECT count(*) FROM sent_mail WHERE recipient <> '' OR first_name <> '' OR last_name <> '' OR waitlist_name <> ''",
	).Scan(
		&addresses,
	); err != nil ||
		addresses != 0 {
		t.Errorf("%d rows with names or addresses, %v", addresses, err)
	}
}
