package app_test

import (
	"encoding/base64"
	"strings"
	"testing"

	"waitlist.internal/libs/claims/claimstest"
	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/kafka/kafkatest"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/rpc"
	"waitlist.internal/libs/service"
	"waitlist.internal/libs/testenv"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/signup/app"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// The consumer goes on behind what it cannot handle, and handles it once when it
// can.
func TestPoison(t *testing.T) {
	brokers, prefix := testenv.Kafka(t)
	url := testenv.Postgres(t)
	seed := []byte(strings.Repeat("s", 32))
	id, err := rpc.NewIdentity("signup", seed)
	if err != nil {
		t.Fatal(err)
	}
	key := base64.StdEncoding.EncodeToString(seed)
	cfg, err := service.Load[app.Config]([]string{
		"POSTGRES_URL=" + url, "REDIS_URL=" + testenv.Redis(t), "KAFKA_BROKERS=" + strings.Join(brokers, ","), "KAFKA_TOPIC_PREFIX=" + prefix,
		"TOKEN_KEYS=k1:" + key, "SEAL_KEYS=k1:" + key, "SERVICE_KEY=" + key, "SERVICE_KEYS=" + rpc.Keys{"signup": {id.Public()}}.String(),
		"GRPC_ADDR=127.0.0.1:0", "ACCOUNT_GRPC=" + claimstest.Serve(t, "account", rpc.Keys{"signup": {id.Public()}}).Target,
	})
	if err != nil {
		t.Fatal(err)
	}
	cfg.LogOutput = t.Output()
	a, err := app.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer testenv.Run(t, a.Run)()
	pool, err := pg.Open(t.Context(), url, "signup", 2)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	kafkatest.TakesPoison(t, kafkatest.Consumer{
		Config: kafka.Config{Brokers: brokers, TopicPrefix: prefix}, Group: "signup", Topic: kafka.AccountsTopic, Pool: pool,
		Event: func(id string) *eventv1.Event {
			return &eventv1.Event{Payload: &eventv1.Event_AccountDeleted{AccountDeleted: &eventv1.AccountDeleted{AccountId: id}}}
		},
		Effects: "SELECT id::text FROM owner WHERE closed_at IS NOT NULL", Undo: "DELETE FROM owner",
	})
}

// A failed start names every problem of the service's own settings and of the shared ones.
func TestConfigurationProblems(t *testing.T) {
	cfg, err := service.Load[app.Config]([]string{
		"SIGNUP_QUEUE_SIZE=0", "SIGNUP_MAX_WAIT=-1s",
		"PURGE_EVERY=0s", "TOMBSTONE_KEPT=-1s", "RATE_LIMIT_RPS=0",
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
		"Set SIGNUP_QUEUE_SIZE to 1 or more.",
		"Set SIGNUP_MAX_WAIT to 0 or longer.",
		"Set PURGE_EVERY to a positive duration.", "Set TOMBSTONE_KEPT to 0 or longer.",
		"Set POSTGRES_URL.", "Set RATE_LIMIT_RPS to a positive number.",
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
