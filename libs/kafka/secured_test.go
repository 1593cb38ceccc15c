package kafka_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kfake"

	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/service"
	"waitlist.internal/libs/testenv"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
)

// secured starts a broker that requires TLS and a login, and returns the
// environment for it.
func secured(t *testing.T, mechanism string) []string {
	t.Helper()
	cert := testenv.NewCertificate(t, t.TempDir())
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.TLS(cert.Server), kfake.EnableSASL(),
		kfake.Superuser(mechanism, "waitlist", "secret"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return []string{
		"KAFKA_BROKERS=" + strings.Join(cluster.ListenAddrs(), ","), "KAFKA_TLS=true", "KAFKA_CA_FILE=" + cert.CAFile,
		"KAFKA_SASL_MECHANISM=" + mechanism, "KAFKA_USERNAME=waitlist", "KAFKA_PASSWORD=secret", "KAFKA_PARTITIONS=2",
	}
}

// configured returns the configuration that a service reads from environ.
func configured(t *testing.T, environ []string) (kafka.Config, error) {
	t.Helper()
	cfg, err := service.Load[service.Config](environ)
	if err != nil {
		t.Fatal(err)
	}
	return cfg.Kafka()
}

// Everything connects with TLS and a login: the topics, the writer, a consumer, its
// dead letters and lag, and the replay.
func TestSecured(t *testing.T) {
	cfg, err := configured(t, secured(t, "SCRAM-SHA-512"))
	if err != nil {
		t.Fatal(err)
	}
	e := openEnv(t, testenv.Postgres(t), cfg)
	if err := kafka.EnsureTopics(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	topics, err := kafka.Describe(t.Context(), cfg)
	if err != nil || len(topics) != 2*len(kafka.Topics()) || topics[0].Partitions != 2 {
		t.Errorf("%+v, %v", topics, err)
	}
	var mended atomic.Bool
	e.run("group", func(ctx context.Context, tx pgx.Tx, ev *eventv1.Event) error {
		if !mended.Load() {
			return errors.New("broken")
		}
		return record("group")(ctx, tx, ev)
	})
	e.write(e.message("a", newEvent("a")))
	e.consumed("group")
	mended.Store(true)
	if n, err := kafka.Replay(t.Context(), cfg, kafka.SignupsTopic); n != 1 || err != nil {
		t.Errorf("%d dead letters replayed, %v", n, err)
	}
	testenv.Eventually(e, "the effect", func() bool { return len(e.effects("group")) == 1 })
}

func TestLogins(t *testing.T) {
	for _, mechanism := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} {
		t.Run(mechanism, func(t *testing.T) {
			environ := secured(t, mechanism)
			for name, c := range map[string]struct {
				instead string
				works   bool
			}{
				"as it is":          {"", true},
				"wrong password":    {"KAFKA_PASSWORD=wrong", false},
				"wrong name":        {"KAFKA_USERNAME=nobody", false},
				"unknown authority": {"KAFKA_CA_FILE=", false},
				"no TLS":            {"KAFKA_TLS=false KAFKA_CA_FILE=", false},
				"no login":          {"KAFKA_SASL_MECHANISM= KAFKA_USERNAME= KAFKA_PASSWORD=", false},
			} {
				cfg, err := configured(t, with(environ, strings.Fields(c.instead)...))
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				err = kafka.Reachable(t.Context(), cfg)
				if name == "no login" && err == nil {
					// The broker accepts the connection but nothing further.
					_, err = kafka.Describe(t.Context(), cfg)
				}
				if (err == nil) != c.works {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}

// with returns environ with some variables replaced.
func with(environ []string, instead ...string) []string {
	out := append([]string(nil), environ...)
	for _, kv := range instead {
		name, _, _ := strings.Cut(kv, "=")
		for i := range out {
			if strings.HasPrefix(out[i], name+"=") {
				out[i] = kv
			}
		}
	}
	return out
}

func TestMisconfigured(t *testing.T) {
	good := []string{
		"KAFKA_BROKERS=a:1", "KAFKA_TLS=", "KAFKA_CA_FILE=", "KAFKA_SASL_MECHANISM=", "KAFKA_USERNAME=",
		"KAFKA_PASSWORD=", "KAFKA_PARTITIONS=", "KAFKA_REPLICATION=",
	}
	if cfg, err := configured(t, good); err != nil || cfg.TLS != nil || cfg.SASL != nil || cfg.Partitions != 6 || cfg.Replication != 1 {
		t.Errorf("%+v, %v", cfg, err)
	}
	for instead, want := range map[string]string{
		"KAFKA_BROKERS=":                               "Set KAFKA_BROKERS.",
		"KAFKA_PARTITIONS=-1":                          "KAFKA_PARTITIONS",
		"KAFKA_REPLICATION=-1":                         "KAFKA_REPLICATION",
		"KAFKA_CA_FILE=/nowhere":                       "Set KAFKA_TLS to true",
		"KAFKA_TLS=true KAFKA_CA_FILE=/nowhere":        "KAFKA_CA_FILE: ",
		"KAFKA_TLS=true KAFKA_CA_FILE=secured_test.go": "no PEM certificate",
		"KAFKA_USERNAME=x":                             "Set KAFKA_SASL_MECHANISM to",
		"KAFKA_SASL_MECHANISM=PLAIN":                   "KAFKA_USERNAME and KAFKA_PASSWORD",
		"KAFKA_SASL_MECHANISM=GSSAPI KAFKA_USERNAME=x KAFKA_PASSWORD=hidden": "Set KAFKA_SASL_MECHANISM to PLAIN",
	} {
		_, err := configured(t, with(good, strings.Fields(instead)...))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v", instead, err)
		}
	}
}
