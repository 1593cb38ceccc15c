package app_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	stdmail "net/mail"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	kafkago "github.com/segmentio/kafka-go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"waitlist.internal/libs/claims/claimstest"
	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/kafka/kafkatest"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/rpc"
	"waitlist.internal/libs/service"
	"waitlist.internal/libs/testenv"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/messaging/app"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// environ is a complete environment of the command.
func environ(t *testing.T) (cfg kafka.Config, dir string, env []string) {
	t.Helper()
	brokers, prefix := testenv.Kafka(t)
	dir = t.TempDir()
	return kafka.Config{Brokers: brokers, TopicPrefix: prefix}, dir, []string{
		"POSTGRES_URL=" + testenv.Postgres(t), "REDIS_URL=" + testenv.Redis(t),
		"KAFKA_BROKERS=" + strings.Join(brokers, ","), "KAFKA_TOPIC_PREFIX=" + prefix,
		"TOKEN_KEYS=k1:" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32))),
		"SEAL_KEYS=k1:" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("s", 32))),
		"MAIL_PROVIDER=maildir", "MAIL_DIR=" + dir, "PUBLIC_FORM_URL=https://join.example.com",
		"ACCOUNT_GRPC=" + claimstest.Serve(t, "account", keys(t)).Target, "SIGNUP_GRPC=" + claimstest.Serve(t, "signup", keys(t)).Target,
		"GRPC_ADDR=127.0.0.1:0", "SERVICE_KEY=" + base64.StdEncoding.EncodeToString(seed()), "SERVICE_KEYS=" + keys(t).String(),
	}
}

// seed is the seed of the service's key.
func seed() []byte { return []byte(strings.Repeat("s", 32)) }

func keys(t *testing.T) rpc.Keys {
	t.Helper()
	id, err := rpc.NewIdentity("messaging", seed())
	if err != nil {
		t.Fatal(err)
	}
	return rpc.Keys{"messaging": {id.Public()}}
}

func start(t *testing.T, env []string) (*app.App, func()) {
	t.Helper()
	cfg, err := service.Load[app.Config](env)
	if err != nil {
		t.Fatal(err)
	}
	cfg.LogOutput = t.Output()
	a, err := app.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a, testenv.Run(t, a.Run)
}

// open returns a pool whose search path is the service's schema.
func open(t *testing.T, env []string) *pgxpool.Pool {
	t.Helper()
	var url string
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "POSTGRES_URL="); ok {
			url = v
		}
	}
	pool, err := pg.Open(t.Context(), url, "messaging", 4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func message(t *testing.T, topic string, ev *eventv1.Event) kafkago.Message {
	t.Helper()
	ev.Id, ev.OccurredAt = uuid.Must(uuid.NewV7()).String(), timestamppb.Now()
	b, err := proto.Marshal(ev)
	if err != nil {
		t.Fatal(err)
	}
	return kafkago.Message{Topic: topic, Key: []byte("k"), Value: b}
}

func TestEventsBecomeMails(t *testing.T) {
	cfg, dir, env := environ(t)
	_, stop := start(t, env)
	w := kafka.NewWriter(cfg)
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	accountID, waitlistID := uuid.NewString(), uuid.NewString()
	expires := timestamppb.New(time.Now().Add(time.Hour))
	signup := func(email string, verify bool) *eventv1.Event {
		return &eventv1.Event{Payload: &eventv1.Event_SignupCreated{SignupCreated: &eventv1.SignupCreated{
			WaitlistId: waitlistID, WaitlistName: "Käse", Email: email, Number: 7, VerificationRequired: verify,
		}}}
	}
	msgs := []kafkago.Message{
		message(
			t,
			kafka.AccountsTopic,
			&eventv1.Event{Payload: &eventv1.Event_AccountVerificationRequested{AccountVerificationRequested: &eventv1.AccountVerificationRequested{
				AccountId: accountID, Email: "owner@example.com", Cycle: 1, ExpiresAt: expires,
			}}},
		),
		message(
			t,
			kafka.AccountsTopic,
			&eventv1.Event{Payload: &eventv1.Event_PasswordResetRequested{PasswordResetRequested: &eventv1.PasswordResetRequested{
				AccountId: accountID, Email: "owner@example.com", Generation: 1, ExpiresAt: expires,
			}}},
		),
		message(t, kafka.AccountsTopic, &eventv1.Event{Payload: &eventv1.Event_TeamMemberInvited{TeamMemberInvited: &eventv1.TeamMemberInvited{
			AccountId: accountID, OwnerEmail: "owner@example.com", Email: "member@example.com", Role: "admin",
		}}}),
		message(t, kafka.SignupsTopic, signup("asked@example.com", true)),
		message(t, kafka.SignupsTopic, signup("unasked@example.com", false)),
		message(t, kafka.SignupsTopic, signup("a@example.com\r\nBcc: b@example.com", true)),
		message(
			t,
			kafka.SignupsTopic,
			&eventv1.Event{Payload: &eventv1.Event_SignupVerified{SignupVerified: &eventv1.SignupVerified{WaitlistId: uuid.NewString(), Number: 7}}},
		),
	}
	testenv.Eventually(t, "written", func() bool { return w.WriteMessages(t.Context(), append(msgs, msgs...)...) == nil })
	consumed := func() bool {
		// Ignore errors: the group may have no coordinator yet.
		lag, err := kafka.Lag(t.Context(), cfg, "messaging", kafka.AccountsTopic, kafka.SignupsTopic)
		return err == nil && lag[kafka.AccountsTopic]+lag[kafka.SignupsTopic] == 0
	}
	files := func() []string {
		names, err := filepath.Glob(filepath.Join(dir, "*.eml"))
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	testenv.Eventually(t, "mails", func() bool { return consumed() && len(files()) >= 4 })
	stop()
	// Another replica reads all events again.
	if err := w.WriteMessages(t.Context(), msgs...); err != nil {
		t.Fatal(err)
	}
	start(t, env)
	testenv.Eventually(t, "consumed", consumed)
	subjects := map[string]bool{}
	for _, name := range files() {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		m, err := stdmail.ReadMessage(strings.NewReader(string(b)))
		if err != nil {
			t.Fatal(err)
		}
		subjects[m.Header.Get("Subject")+" "+m.Header.Get("To")] = true
	}
	for _, want := range []string{
		"Confirm your email address <owner@example.com>", "Reset your password <owner@example.com>", "Invitation to a team <member@example.com>",
		"=?UTF-8?q?Confirm_your_email_address_for_K=C3=A4se?= <asked@example.com>",
	} {
		if !subjects[want] {
			t.Errorf("no mail %q", want)
		}
	}
	if len(subjects) != 4 || len(files()) != 4 {
		t.Errorf("mails: %v", subjects)
	}
}

// The consumer continues past an event that it cannot handle, and handles it once as soon as it
// can.
func TestPoison(t *testing.T) {
	cfg, _, env := environ(t)
	start(t, env)
	pool := open(t, env)
	for _, c := range []kafkatest.Consumer{
		{
			Group: "messaging", Topic: kafka.AccountsTopic,
			Event: func(id string) *eventv1.Event {
				return &eventv1.Event{Payload: &eventv1.Event_TeamMemberInvited{TeamMemberInvited: &eventv1.TeamMemberInvited{
					AccountId: id, OwnerEmail: "owner@example.com", Email: "member@example.com", Role: "viewer",
				}}}
			},
			Effects: "SELECT account_id::text FROM sent_mail WHERE account_id IS NOT NULL",
			Undo:    "DELETE FROM sent_mail WHERE account_id IS NOT NULL",
		},
		{
			Group: "messaging", Topic: kafka.SignupsTopic,
			Event: func(id string) *eventv1.Event {
				return &eventv1.Event{Payload: &eventv1.Event_SignupCreated{SignupCreated: &eventv1.SignupCreated{
					WaitlistId: id, Email: "ada@example.com", Number: 1, VerificationRequired: true,
				}}}
			},
			Effects: "SELECT waitlist_id::text FROM sent_mail WHERE waitlist_id IS NOT NULL",
			Undo:    "DELETE FROM sent_mail WHERE waitlist_id IS NOT NULL",
		},
	} {
		t.Run(c.Topic, func(t *testing.T) {
			t.Parallel()
			c.Config, c.Pool = cfg, pool
			kafkatest.TakesPoison(t, c)
		})
	}
}

// Deleting an account or waitlist deletes its mails, also those whose events arrive late.
func TestDeletionsReachTheMails(t *testing.T) {
	cfg, _, env := environ(t)
	start(t, append(env, "PURGE_EVERY=20ms"))
	w := kafka.NewWriter(cfg)
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	pool := open(t, env)
	accountID, waitlistID := uuid.NewString(), uuid.NewString()
	asked := func() []kafkago.Message {
		return []kafkago.Message{
			message(t, kafka.AccountsTopic, &eventv1.Event{Payload: &eventv1.Event_TeamMemberInvited{TeamMemberInvited: &eventv1.TeamMemberInvited{
				AccountId: accountID, OwnerEmail: "owner@example.com", Email: "member@example.com", Role: "viewer",
			}}}),
			message(t, kafka.SignupsTopic, &eventv1.Event{Payload: &eventv1.Event_SignupCreated{SignupCreated: &eventv1.SignupCreated{
				WaitlistId: waitlistID, Email: "ada@example.com", Number: 1, VerificationRequired: true,
			}}}),
		}
	}
	ledger := func(query string, args ...any) (n int) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), query, args...).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	testenv.Eventually(t, "written", func() bool { return w.WriteMessages(t.Context(), asked()...) == nil })
	testenv.Eventually(t, "sent", func() bool { return ledger("SELECT count(*) FROM sent_mail WHERE state = 'sent'") >= 2 })
	gone := []kafkago.Message{
		message(
			t,
			kafka.AccountsTopic,
			&eventv1.Event{Payload: &eventv1.Event_AccountDeleted{AccountDeleted: &eventv1.AccountDeleted{AccountId: accountID}}},
		),
		message(
			t,
			kafka.SignupsTopic,
			&eventv1.Event{Payload: &eventv1.Event_WaitlistDeleted{WaitlistDeleted: &eventv1.WaitlistDeleted{WaitlistId: waitlistID}}},
		),
	}
	late := asked()
	if err := w.WriteMessages(t.Context(), append(gone, late...)...); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "purged", func() bool {
		return ledger("SELECT count(*) FROM inbox WHERE event_id = ANY ($1)", []string{eventID(t, late[0]), eventID(t, late[1])}) == 2 &&
			ledger("SELECT count(*) FROM sent_mail") == 0 && ledger("SELECT (SELECT count(*) FROM tombstone) - (SELECT count(*) FROM gone)") == 2
	})
}

func eventID(t *testing.T, m kafkago.Message) string {
	t.Helper()
	ev := new(eventv1.Event)
	if err := proto.Unmarshal(m.Value, ev); err != nil {
		t.Fatal(err)
	}
	return ev.GetId()
}

func TestWhatIsServed(t *testing.T) {
	_, _, env := environ(t)
	a, _ := start(t, env)
	for path, want := range map[string]string{
		"/v1/templates": "401 AUTHENTICATION_REQUIRED", "/v1/templates/x": "401 AUTHENTICATION_REQUIRED",
		"/v1/templates/x/y": "404 NOT_FOUND", "/v1/templates/": "404 NOT_FOUND",
	} {
		rec := httptest.NewRecorder()
		a.Handler().ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		var body struct {
			Code string `json:"error_code"`
		}
		if err := json.Unmarshal(rec.Body.Bytes(), &body); err != nil || fmt.Sprint(rec.Code, " ", body.Code) != want {
			t.Errorf("%s: %d %s, want %s", path, rec.Code, rec.Body, want)
		}
	}
}

func TestConfigurationIsChecked(t *testing.T) {
	_, _, env := environ(t)
	for name, change := range map[string]string{
		"unknown provider":    "MAIL_PROVIDER=pigeon",
		"no folder":           "MAIL_DIR=",
		"smtp without sender": "MAIL_PROVIDER=smtp",
		"bad sender":          "MAIL_FROM=nobody",
		"relative link base":  "PUBLIC_FORM_URL=/forms",
		"no keys":             "TOKEN_KEYS=",
		"no seal keys":        "SEAL_KEYS=",
		"resend without key":  "MAIL_PROVIDER=resend",
		"unknown SMS":         "SMS_PROVIDER=pigeon",
		"twilio without SID":  "SMS_PROVIDER=twilio",
		"bad resolver":        "DNS_RESOLVER=nowhere",
		"bad webhook secret":  "RESEND_WEBHOOK_SECRETS=whsec_c2hvcnQ=",
		"no pause":            "PURGE_EVERY=0s",
	} {
		key, _, _ := strings.Cut(change, "=")
		changed := []string{change}
		for _, kv := range env {
			if !strings.HasPrefix(kv, key+"=") {
				changed = append(changed, kv)
			}
		}
		cfg, err := service.Load[app.Config](changed)
		if err != nil {
			t.Fatal(err)
		}
		cfg.LogOutput = t.Output()
		if a, err := app.New(t.Context(), cfg); err == nil {
			t.Error(name)
			_ = a.Close(t.Context())
		}
	}
}

// A failed start names every problem of the service's own settings and of the shared ones.
func TestConfigurationProblems(t *testing.T) {
	cfg, err := service.Load[app.Config]([]string{
		"MAIL_PROVIDER=pigeon", "MAIL_FROM=nobody", "SMS_PROVIDER=pigeon", "DNS_RESOLVER=nowhere",
		"PUBLIC_FORM_URL=/forms", "RESEND_WEBHOOK_SECRETS=whsec_c2hvcnQ=", "MAIL_WORKERS=0", "BLAST_RATE=-1",
	})
	if err != nil {
		t.Fatal(err)
	}
	a, err := app.New(t.Context(), cfg)
	if err == nil {
		_ = a.Close(t.Context())
		t.Fatal("started")
	}
	for _, want := range []string{
		"Set MAIL_PROVIDER", "MAIL_FROM: ", "Set SMS_PROVIDER", "DNS_RESOLVER: ", "public form URL",
		"RESEND_WEBHOOK_SECRETS: ", "MAIL_WORKERS", "BLAST_RATE", "Set POSTGRES_URL.",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in:\n%v", want, err)
		}
	}
}

// TestReseal: the command needs a database and keys, and leaves a schema that the service
// takes.
func TestReseal(t *testing.T) {
	key := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("s", 32)))
	cfg, err := service.Load[service.Config]([]string{"POSTGRES_URL=" + testenv.Postgres(t), "SEAL_KEYS=k1:" + key})
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	cfg.LogOutput = &log
	command, err := app.NewReseal(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Run(t.Context()); err != nil || !strings.Contains(log.String(), `"values":0`) {
		t.Errorf("%v: %s", err, log.String())
	}
	cfg.SealKeys = ""
	if _, err := app.NewReseal(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "SEAL_KEYS") {
		t.Error(err)
	}
}
