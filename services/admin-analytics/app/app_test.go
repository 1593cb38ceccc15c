package app_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"net"
	"strings"
	"testing"

	"waitlist.internal/libs/claims/claimstest"
	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/kafka/kafkatest"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/rpc"
	"waitlist.internal/libs/service"
	"waitlist.internal/libs/testenv"
	analyticsv1 "waitlist.internal/proto/gen/waitlist/analytics/v1"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	adminanalytics "waitlist.internal/services/admin-analytics"
	"waitlist.internal/services/admin-analytics/app"
	"waitlist.internal/services/admin-analytics/postgres"
)

func TestMain(m *testing.M) {
	testenv.Main(m)
}

// signup is who may ask for sums.
func signup(t *testing.T) *rpc.Identity {
	t.Helper()
	id, err := rpc.NewIdentity("signup", []byte(strings.Repeat("s", ed25519.SeedSize)))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// config is a whole environment, as the command would read it.
func config(t *testing.T) app.Config {
	t.Helper()
	brokers, prefix := testenv.Kafka(t)
	seed := make([]byte, ed25519.SeedSize)
	id, err := rpc.NewIdentity(adminanalytics.Name, seed)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := service.Load[app.Config]([]string{
		"POSTGRES_URL=" + testenv.Postgres(t), "KAFKA_BROKERS=" + strings.Join(brokers, ","), "KAFKA_TOPIC_PREFIX=" + prefix,
		"SERVICE_KEY=" + base64.StdEncoding.EncodeToString(seed), "SERVICE_KEYS=" + rpc.Keys{"signup": {signup(t).Public()}}.String(),
		"GRPC_ADDR=127.0.0.1:0",
		"SIGNUP_GRPC=" + claimstest.Serve(t, "signup", rpc.Keys{adminanalytics.Name: {id.Public()}}).Target,
	})
	if err != nil {
		t.Fatal(err)
	}
	cfg.LogOutput = t.Output()
	return cfg
}

func TestStartsAnswersAndStops(t *testing.T) {
	t.Parallel()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := config(t)
	cfg.GRPCListener = listener
	a, err := app.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if a.Ready(t.Context()) == nil {
		t.Error("ready before it serves")
	}
	stop := testenv.Run(t, a.Run)

	conn, err := rpc.Dial(listener.Addr().String(), signup(t), adminanalytics.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	res, err := analyticsv1.NewAnalyticsServiceClient(conn).GetSeries(t.Context(), &analyticsv1.GetSeriesRequest{
		WaitlistId: "0197f0c4-6d0e-7cc1-a2a3-00000000000a", Days: 7,
	})
	if err != nil || len(res.GetDays()) != 7 {
		t.Errorf("got %v, %v", res, err)
	}
	if err := a.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	stop()
	if a.Ready(t.Context()) == nil {
		t.Error("ready after its end")
	}
}

// The consumer goes on behind what it cannot handle, and handles it once when it
// can.
func TestPoison(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	a, err := app.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer testenv.Run(t, a.Run)()
	pool, err := pg.Open(t.Context(), cfg.PostgresURL, postgres.Schema, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	kafkatest.TakesPoison(t, kafkatest.Consumer{
		Config: kafka.Config{
			Brokers:     cfg.KafkaBrokers,
			TopicPrefix: cfg.KafkaTopicPrefix,
		},
		Group: adminanalytics.Name,
		Topic: kafka.SignupsTopic,
		Pool:  pool,
		Event: func(id string) *eventv1.Event {
			return &eventv1.Event{Payload: &eventv1.Event_SignupCreated{SignupCreated: &eventv1.SignupCreated{WaitlistId: id, Number: 1}}}
		},
		// Folded or not.
		Effects: "SELECT waitlist_id::text FROM " +
			"(SELECT waitlist_id, signups FROM arrival UNION ALL SELECT waitlist_id, signups FROM day) _, generate_series(1, signups)",
		Undo: "TRUNCATE arrival, day",
	})
}

func TestSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	cfg, err := service.Load[app.Config](nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := app.New(t.Context(), cfg); err == nil {
		t.Error("started without Kafka and a key")
	}
	if _, err := app.NewRebuild(t.Context(), cfg, nil); err == nil {
		t.Error("rebuild started without Postgres and a key")
	}
	for _, arg := range []string{"-views=perhaps", "-waitlist=1"} {
		if _, err := app.NewRebuild(t.Context(), cfg, []string{arg}); err == nil {
			t.Errorf("rebuild takes %s", arg)
		}
	}
}
