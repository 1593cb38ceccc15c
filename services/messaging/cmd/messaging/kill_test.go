package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	mathrand "math/rand/v2"
	"net"
	"net/http/httptest"
	stdmail "net/mail"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gosmtp "github.com/emersion/go-smtp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/rpc"
	"waitlist.internal/libs/service"
	"waitlist.internal/libs/testenv"
	accessv1 "waitlist.internal/proto/gen/waitlist/access/v1"
	messagingv1 "waitlist.internal/proto/gen/waitlist/messaging/v1"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	"waitlist.internal/services/messaging/app"
	"waitlist.internal/services/messaging/providers/resendtest"
)

// asService makes this test program run the service, as a process that can be killed.
const asService = "MESSAGING_TEST_AS_SERVICE"

func TestMain(m *testing.M) {
	if os.Getenv(asService) != "" {
		os.Exit(service.Command(func(ctx context.Context, cfg app.Config) (*app.App, error) {
			cfg.BlastLease = time.Second
			return app.New(ctx, cfg)
		}))
	}
	testenv.Main(m)
}

const (
	waitlistID = "0197f0c4-6d0e-7cc1-a2a3-bbbbbbbbbbbb"
	ownerID    = "0197f0c4-6d0e-7cc1-a2a3-cccccccccccc"
	// inFlight is how many mails one process can have sent but not recorded: four for each of its workers.
	inFlight = 4 * 4
	// patience limits the duration of a blast.
	patience = 10 * time.Minute
)

// signups stands in for signup, with n people on one waitlist.
type signups struct {
	signupv1.UnimplementedSignupServiceServer
	n int64
}

func person(n int64) string { return fmt.Sprintf("p%d@example.com", n) }

// ListRecipients implements the service.
func (s *signups) ListRecipients(_ context.Context, r *signupv1.ListRecipientsRequest) (*signupv1.ListRecipientsResponse, error) {
	out := &signupv1.ListRecipientsResponse{}
	for n := r.GetAfter() + 1; n <= s.n && len(out.Numbers) < int(r.GetLimit()); n++ {
		out.Numbers = append(out.Numbers, n)
	}
	return out, nil
}

// GetRecipients implements the service.
func (s *signups) GetRecipients(_ context.Context, r *signupv1.GetRecipientsRequest) (*signupv1.GetRecipientsResponse, error) {
	out := &signupv1.GetRecipientsResponse{WaitlistName: "List", Pro: true}
	for _, n := range r.GetNumbers() {
		out.Recipients = append(out.Recipients, &signupv1.Recipient{Number: n, Email: person(n)})
	}
	return out, nil
}

// arrivals are the Message-IDs, or other identifiers, of the received mails by recipient.
type arrivals struct {
	mu  sync.Mutex
	ids map[string][]string
}

func (a *arrivals) add(to, id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ids[to] = append(a.ids[to], id)
}

func (a *arrivals) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.ids)
}

// sink receives the mails of one provider.
type sink struct {
	env []string
	// count returns how many recipients have received a mail.
	count func() int
	// arrived returns all received mails at the end.
	arrived func() map[string][]string
	// repeats is how many mails may be repeated for each kill, with the same Message-ID.
	repeats int
}

func newMaildir(t *testing.T) sink {
	t.Helper()
	dir := t.TempDir()
	files := func() []string {
		names, err := filepath.Glob(filepath.Join(dir, "*.eml"))
		if err != nil {
			t.Error(err)
		}
		return names
	}
	return sink{
		env:   []string{"MAIL_PROVIDER=maildir", "MAIL_DIR=" + dir},
		count: func() int { return len(files()) },
		arrived: func() map[string][]string {
			a := arrivals{ids: map[string][]string{}}
			for _, name := range files() {
				b, err := os.ReadFile(name)
				if err != nil {
					t.Fatal(err)
				}
				a.addMail(t, b)
			}
			return a.ids
		},
	}
}

func (a *arrivals) addMail(t *testing.T, b []byte) {
	t.Helper()
	m, err := stdmail.ReadMessage(bytes.NewReader(b))
	if err != nil {
		t.Error(err)
		return
	}
	to, err := stdmail.ParseAddress(m.Header.Get("To"))
	if err != nil {
		t.Error(err)
		return
	}
	a.add(to.Address, m.Header.Get("Message-Id"))
}

// session receives the mails of one SMTP connection.
type session struct {
	t *testing.T
	*arrivals
}

// Mail implements gosmtp.Session.
func (session) Mail(string, *gosmtp.MailOptions) error { return nil }

// Rcpt implements gosmtp.Session.
func (session) Rcpt(string, *gosmtp.RcptOptions) error { return nil }

// Data implements gosmtp.Session.
func (s session) Data(r io.Reader) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return err // the client was killed: the mail is not accepted
	}
	s.addMail(s.t, b)
	return nil
}

// Reset implements gosmtp.Session.
func (session) Reset() {}

// Logout implements gosmtp.Session.
func (session) Logout() error { return nil }

func newSMTP(t *testing.T) sink {
	t.Helper()
	a := &arrivals{ids: map[string][]string{}}
	s := gosmtp.NewServer(gosmtp.BackendFunc(func(*gosmtp.Conn) (gosmtp.Session, error) { return session{t, a}, nil }))
	s.Domain = "localhost"
	s.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	l := listen(t)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		_ = s.Close()
		if err := <-served; err != nil && !errors.Is(err, gosmtp.ErrServerClosed) {
			t.Error(err)
		}
	})
	host, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return sink{
		env:   []string{"MAIL_PROVIDER=smtp", "MAIL_FROM=List <no-reply@example.com>", "SMTP_HOST=" + host, "SMTP_PORT=" + port, "SMTP_TLS=none"},
		count: a.count, repeats: inFlight,
		arrived: func() map[string][]string { a.mu.Lock(); defer a.mu.Unlock(); return maps.Clone(a.ids) },
	}
}

func newResend(t *testing.T) sink {
	t.Helper()
	api := &resendtest.Server{APIKey: "re_key"}
	s := httptest.NewServer(api)
	t.Cleanup(s.Close)
	return sink{
		env:   []string{"MAIL_PROVIDER=resend", "MAIL_FROM=List <no-reply@example.com>", "RESEND_API_KEY=re_key", "RESEND_URL=" + s.URL},
		count: api.Count,
		arrived: func() map[string][]string {
			a := arrivals{ids: map[string][]string{}}
			for _, e := range api.Emails() {
				a.add(e.To[0], e.ID)
			}
			return a.ids
		},
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// identity generates a service's key.
func identity(t *testing.T, name string) (seed string, id *rpc.Identity) {
	t.Helper()
	raw := make([]byte, ed25519.SeedSize)
	_, _ = rand.Read(raw) // never fails
	id, err := rpc.NewIdentity(name, raw)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(raw), id
}

// replica is a process of the service.
type replica struct {
	t    *testing.T
	env  []string
	addr string
	log  io.Writer
	cmd  *exec.Cmd
}

func (r *replica) start() {
	self, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	r.cmd = exec.Command(self)
	r.cmd.Env = append(os.Environ(), r.env...)
	r.cmd.Env = append(r.cmd.Env, asService+"=1", "GRPC_ADDR="+r.addr)
	r.cmd.Stdout, r.cmd.Stderr = r.log, r.log
	if err := r.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
}

// kill sends SIGKILL.
func (r *replica) kill() {
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait() // returns an error, because the process was killed
}

// Two processes send one blast and are killed in turn until it ends. Every recipient gets the mail: exactly
// once if the provider accepts each mail once. With SMTP, mails in flight at a kill may be repeated with the
// same Message-ID.
func TestKillsInABlast(t *testing.T) {
	people, kills := 4000, 10
	switch {
	case os.Getenv("CHAOS") == "full":
		people, kills = 100_000, 50
	case testing.Short():
		people, kills = 1000, 3
	}
	for _, to := range []struct {
		name string
		sink func(*testing.T) sink
	}{{"maildir", newMaildir}, {"smtp", newSMTP}, {"resend", newResend}} {
		t.Run(to.name, func(t *testing.T) {
			killsInABlast(t, to.sink(t), int64(people), kills)
		})
	}
}

func killsInABlast(t *testing.T, to sink, people int64, kills int) {
	t.Helper()
	rng := mathrand.New(mathrand.NewPCG(testenv.Seed(t), 1))
	seed, messaging := identity(t, "messaging")
	_, caller := identity(t, "signup")
	signup := rpc.NewServer("signup", rpc.Keys{"messaging": {messaging.Public()}}, slog.New(slog.DiscardHandler))
	signupv1.RegisterSignupServiceServer(signup, &signups{n: people})
	l := listen(t)
	served := make(chan error, 1)
	go func() { served <- signup.Serve(l) }()
	defer func() {
		signup.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	brokers, prefix := testenv.Kafka(t)
	database := testenv.Postgres(t)
	secret := "k1:" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32)))
	env := append([]string{
		"POSTGRES_URL=" + database,
		"REDIS_URL=" + testenv.Redis(t),
		"KAFKA_BROKERS=" + strings.Join(brokers, ","),
		"KAFKA_TOPIC_PREFIX=" + prefix,
		"TOKEN_KEYS=" + secret,
		"SEAL_KEYS=" + secret,
		"PUBLIC_FORM_URL=https://join.example.com",
		"SIGNUP_GRPC=" + l.Addr().String(),
		"SERVICE_KEY=" + seed,
		"SERVICE_KEYS=" + rpc.Keys{"signup": {caller.Public()}}.String(),
		"LOG_LEVEL=WARN",
	}, to.env...)
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	defer func() {
		if b, _ := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("the processes' log ends with:\n%s", b[max(0, len(b)-8000):])
		}
	}()
	replicas := make([]*replica, 2)
	for i := range replicas {
		free := listen(t)
		replicas[i] = &replica{t: t, env: env, addr: free.Addr().String(), log: log}
		_ = free.Close()
		replicas[i].start()
		defer func() { replicas[i].kill() }()
	}

	created := make(chan string, 1)
	go func() { created <- create(t, caller, replicas) }()
	for i := range kills {
		// Kill between the first mail and the last ones.
		part := int(people) / (kills + 1)
		moment := i*part + 1 + rng.IntN(part)
		testenv.Within(t, patience, "the blast goes on", func() bool { return to.count() >= moment })
		r := replicas[rng.IntN(len(replicas))]
		r.kill()
		r.start()
	}
	id := <-created
	pool, err := pg.Open(t.Context(), database, "messaging", 2)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	var state string
	var recipients, failed int64
	testenv.Within(t, patience, "the blast ends", func() bool {
		err := pool.QueryRow(
			t.Context(),
			"SELECT state, recipient_count, failed_count FROM blast WHERE id = $1",
			id,
		).Scan(
			&state,
			&recipients,
			&failed,
		)
		return err == nil && state != "queued" && state != "sending"
	})
	if state != "sent" || recipients != people || failed != 0 {
		t.Errorf("%s, %d recipients, %d failed", state, recipients, failed)
	}
	rows, err := pool.Query(t.Context(), "SELECT number FROM blast_recipient WHERE blast_id = $1 AND state = 'sent'", id)
	if err != nil {
		t.Fatal(err)
	}
	sent, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		t.Fatal(err)
	}
	arrived := to.arrived()
	if len(sent) != int(people) || len(arrived) != int(people) {
		t.Errorf("the ledger has %d mails, %d people got one, of %d", len(sent), len(arrived), people)
	}
	repeats := 0
	for _, n := range sent {
		ids := arrived[person(n)]
		repeats += len(ids) - 1
		if len(slices.Compact(slices.Sorted(slices.Values(ids)))) != 1 {
			t.Errorf("%s got %q", person(n), ids)
		}
	}
	if repeats > to.repeats*kills {
		t.Errorf("%d mails came again after %d kills, at most %d were in flight", repeats, kills, to.repeats*kills)
	}
	t.Logf("%d people, %d kills, %d repeats", people, kills, repeats)
}

// create requests the blast until a replica answers.
func create(t *testing.T, caller *rpc.Identity, replicas []*replica) string {
	t.Helper()
	key := uuid.NewString()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		conn, err := rpc.Dial(replicas[i%len(replicas)].addr, caller, "messaging")
		if err != nil {
			t.Error(err)
			return ""
		}
		res, err := messagingv1.NewMessagingServiceClient(conn).CreateBlast(t.Context(), &messagingv1.CreateBlastRequest{
			WaitlistId: waitlistID, OwnerId: ownerID, AccountId: ownerID, Role: accessv1.Role_ROLE_OWNER, Subject: "News", TextBody: "We are live",
			IdempotencyKey: key,
		}, rpc.Deadline(8*time.Second))
		_ = conn.Close()
		if err == nil {
			return res.GetBlast().GetBlastId()
		}
		select {
		case <-t.Context().Done():
			return ""
		case <-tick.C:
		}
	}
}
