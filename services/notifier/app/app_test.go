package app_test

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	kafkago "github.com/segmentio/kafka-go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/kafka"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/rpc"
	"waitlist.internal/libs/service"
	"waitlist.internal/libs/testenv"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	"waitlist.internal/services/notifier/app"
	notifierhttp "waitlist.internal/services/notifier/http"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// signups is signup's side, with one waitlist that has every channel.
type signups struct {
	signupv1.UnimplementedSignupServiceServer
	waitlistID, url string
}

// GetNotice implements the service.
func (s *signups) GetNotice(_ context.Context, r *signupv1.GetNoticeRequest) (*signupv1.GetNoticeResponse, error) {
	if r.GetWaitlistId() != s.waitlistID || r.GetNumber() > 100 {
		return nil, apierr.NotFoundf("There is no such signup.")
	}
	out := &signupv1.GetNoticeResponse{
		WebhookUrl: s.url + "/hook", SlackWebhookUrl: s.url + "/slack", DiscordWebhookUrl: s.url + "/discord",
		WebhookEvents: []string{"signup.created", "referral.credited"}, Email: "ada@example.com", FirstName: "Ada",
	}
	if r.GetWithPosition() {
		out.Position = 41
	}
	return out, nil
}

// WaitlistExists implements the service: the one waitlist is about to be deleted.
func (s *signups) WaitlistExists(context.Context, *signupv1.WaitlistExistsRequest) (*signupv1.WaitlistExistsResponse, error) {
	return &signupv1.WaitlistExistsResponse{}, nil
}

// env is all that the app needs.
type env struct {
	*testing.T
	kafka   kafka.Config
	pool    *pgxpool.Pool
	environ []string
	http    notifierhttp.Config
	signups *signups

	mu    sync.Mutex
	posts map[string]int
}

func newEnv(t *testing.T) *env {
	t.Helper()
	e := &env{T: t, posts: map[string]int{}}
	brokers, prefix := testenv.Kafka(t)
	e.kafka = kafka.Config{Brokers: brokers, TopicPrefix: prefix}
	receiver := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.posts[r.URL.Path+" "+string(b)]++
	}))
	t.Cleanup(receiver.Close)
	e.http.Roots = x509.NewCertPool()
	e.http.Roots.AddCert(receiver.Certificate())
	// Names cannot be looked up here: they are at the receiver, through a proxy of
	// the operator's.
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to, err := new(net.Dialer).DialContext(r.Context(), "tcp", receiver.Listener.Addr().String())
		if err != nil {
			return
		}
		defer to.Close()
		from, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer from.Close()
		_, _ = io.WriteString(from, "HTTP/1.1 200 OK\r\n\r\n")
		var both sync.WaitGroup
		both.Go(func() { _, _ = io.Copy(to, from); _ = to.(*net.TCPConn).CloseWrite() })
		both.Go(func() { _, _ = io.Copy(from, to); _ = from.(*net.TCPConn).CloseWrite() })
		both.Wait()
	}))
	t.Cleanup(proxy.Close)
	via, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	e.http.Proxy = func(*url.URL) (*url.URL, error) { return via, nil }

	seed := make([]byte, 32)
	_, _ = rand.Read(seed)
	id, err := rpc.NewIdentity("notifier", seed)
	if err != nil {
		t.Fatal(err)
	}
	e.signups = &signups{waitlistID: uuid.NewString(), url: "https://example.com"}
	srv := rpc.NewServer("signup", rpc.Keys{"notifier": {id.Public()}}, slog.New(slog.NewTextHandler(t.Output(), nil)))
	signupv1.RegisterSignupServiceServer(srv, e.signups)
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
	url := testenv.Postgres(t)
	e.environ = []string{
		"POSTGRES_URL=" + url, "KAFKA_BROKERS=" + strings.Join(brokers, ","), "KAFKA_TOPIC_PREFIX=" + prefix,
		"SERVICE_KEY=" + base64.StdEncoding.EncodeToString(seed), "SIGNUP_GRPC=" + listener.Addr().String(),
	}
	if e.pool, err = pg.Open(t.Context(), url, "notifier", 2); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.pool.Close)
	return e
}

// start runs the app and returns what stops it.
func (e *env) start() (*app.App, net.Addr, func()) {
	e.Helper()
	cfg, err := service.Load[app.Config](e.environ)
	if err != nil {
		e.Fatal(err)
	}
	internal, err := (&net.ListenConfig{}).Listen(e.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		e.Fatal(err)
	}
	cfg.LogOutput, cfg.HTTP, cfg.InternalListener = e.Output(), e.http, internal
	a, err := app.New(e.Context(), cfg)
	if err != nil {
		e.Fatal(err)
	}
	return a, internal.Addr(), testenv.Run(e, a.Run)
}

func (e *env) seen() map[string]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.posts)
}

func (e *env) rows(query string) (n int) {
	e.Helper()
	if err := e.pool.QueryRow(e.Context(), query).Scan(&n); err != nil {
		e.Fatal(err)
	}
	return n
}

func (e *env) consumed() bool {
	// An error passes: the group may have no coordinator yet.
	lag, err := kafka.Lag(e.Context(), e.kafka, "notifier", kafka.SignupsTopic)
	return err == nil && lag[kafka.SignupsTopic] == 0
}

func message(t *testing.T, key string, ev *eventv1.Event) kafkago.Message {
	t.Helper()
	ev.Id, ev.OccurredAt = uuid.Must(
		uuid.NewV7(),
	).String(), timestamppb.New(
		time.Date(time.Now().Year(), time.Now().Month(), time.Now().Day(), 0, 0, 0, 0, time.UTC),
	)
	b, err := proto.Marshal(ev)
	if err != nil {
		t.Fatal(err)
	}
	return kafkago.Message{Topic: kafka.SignupsTopic, Key: []byte(key), Value: b}
}

func allChannels() []eventv1.Channel {
	return []eventv1.Channel{eventv1.Channel_CHANNEL_WEBHOOK, eventv1.Channel_CHANNEL_SLACK, eventv1.Channel_CHANNEL_DISCORD, 99}
}

func (e *env) created(waitlistID string, number int64, channels ...eventv1.Channel) kafkago.Message {
	e.Helper()
	return message(e.T, waitlistID, &eventv1.Event{Payload: &eventv1.Event_SignupCreated{SignupCreated: &eventv1.SignupCreated{
		WaitlistId: waitlistID, OwnerId: uuid.NewString(), Number: number, Email: "ada@example.com", Position: 7, Channels: channels,
	}}})
}

func (e *env) credited(waitlistID string) kafkago.Message {
	e.Helper()
	return message(e.T, waitlistID, &eventv1.Event{Payload: &eventv1.Event_ReferralCredited{ReferralCredited: &eventv1.ReferralCredited{
		WaitlistId:    waitlistID,
		OwnerId:       uuid.NewString(),
		Number:        1,
		ReferralCount: 3,
		Channels:      []eventv1.Channel{eventv1.Channel_CHANNEL_WEBHOOK},
	}}})
}

// Each event reaches each of its channels once, whatever comes twice or is
// broken in between.
func TestEventsReachTheChannelsOnce(t *testing.T) {
	e := newEnv(t)
	_, _, stop := e.start()
	w := kafka.NewWriter(e.kafka)
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	id := e.signups.waitlistID
	undecodable := kafkago.Message{Topic: kafka.SignupsTopic, Key: []byte(id), Value: []byte("\xff")}
	unknown := message(t, id, new(eventv1.Event))
	failing := e.created("no-uuid", 1, allChannels()...)
	failing.Key = []byte(id)
	msgs := []kafkago.Message{
		e.created(id, 1, allChannels()...),
		undecodable,
		unknown,
		failing,
		e.created(id, 2), // has no channels
		e.created(id, 101, allChannels()...),
		e.created(uuid.NewString(), 1, allChannels()...),
		e.credited(id),
		message(
			t,
			id,
			&eventv1.Event{Payload: &eventv1.Event_SignupVerified{SignupVerified: &eventv1.SignupVerified{WaitlistId: id, Number: 1}}},
		),
	}
	testenv.Eventually(e, "written", func() bool {
		return w.WriteMessages(t.Context(), append(slices.Clone(msgs), msgs[0], msgs[7])...) == nil
	})
	testenv.Eventually(e, "delivered", func() bool { return e.consumed() && len(e.seen()) >= 4 })
	testenv.Eventually(e, "the gone are forgotten", func() bool { return e.rows("SELECT count(*) FROM delivery") == 4 })
	stop()
	// Another replica reads everything once more.
	if err := w.WriteMessages(t.Context(), msgs[0], msgs[7]); err != nil {
		t.Fatal(err)
	}
	e.start()
	testenv.Eventually(e, "consumed", e.consumed)
	day := time.Now().UTC().Format(time.DateOnly) + "T00:00:00.000Z"
	want := map[string]int{
		`/hook {"event":"signup.created","waitlist_id":"` + id + `","timestamp":"` + day +
			`","data":{"email":"ada@example.com","first_name":"Ada","last_name":"","position":7,"referral_token":""}}`: 1,
		`/hook {"event":"referral.credited","waitlist_id":"` + id + `","timestamp":"` + day +
			`","data":{"email":"ada@example.com","referral_count":3,"position":41}}`: 1,
		`/slack {"text":"New signup on waitlist ` + id + `: ada@example.com",` +
			`"blocks":[{"type":"section","text":{"type":"mrkdwn","text":"*New Signup*\nWaitlist: ` + id +
			`\nEmail: ada@example.com\nPosition: #7"}}]}`: 1,
		`/discord {"embeds":[{"title":"New Signup","description":"Email: ada@example.com\nPosition: #7",` +
			`"color":6513393,"timestamp":"` + day + `"}]}`: 1,
	}
	if got := e.seen(); !maps.Equal(got, want) {
		t.Errorf("%v\nwant %v", got, want)
	}
	// What was broken is put aside, each once and again when it is replayed.
	n, err := kafka.Replay(t.Context(), e.kafka, kafka.SignupsTopic)
	if err != nil || n != 3 {
		t.Errorf("%d dead letters, %v", n, err)
	}
	testenv.Eventually(e, "replayed", func() bool {
		lag, err := kafka.Lag(t.Context(), e.kafka, "notifier", kafka.SignupsTopic)
		return err == nil && lag[kafka.SignupsTopic] == 0
	})
	if got := e.seen(); !maps.Equal(got, want) {
		t.Errorf("after the replay: %v", got)
	}
}

// A deleted waitlist takes what is queued and the log along.
func TestADeletedWaitlistIsForgotten(t *testing.T) {
	e := newEnv(t)
	e.start()
	w := kafka.NewWriter(e.kafka)
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	id := e.signups.waitlistID
	testenv.Eventually(e, "written", func() bool { return w.WriteMessages(t.Context(), e.created(id, 1, allChannels()...)) == nil })
	testenv.Eventually(e, "delivered", func() bool { return e.rows("SELECT count(*) FROM delivery WHERE outcome = 'delivered'") == 3 })
	gone := message(t, id, &eventv1.Event{Payload: &eventv1.Event_WaitlistDeleted{WaitlistDeleted: &eventv1.WaitlistDeleted{WaitlistId: id}}})
	if err := w.WriteMessages(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(e, "forgotten", func() bool { return e.rows("SELECT count(*) FROM delivery") == 0 })
	if n := e.rows("SELECT count(*) FROM delivery d WHERE d::text LIKE '%@%' OR d::text LIKE '%://%'"); n > 0 {
		t.Errorf("%d rows with an address", n)
	}
}

func TestStartsReportsReadyAndStops(t *testing.T) {
	e := newEnv(t)
	a, addr, stop := e.start()
	testenv.Eventually(e, "ready", func() bool { return ready(t, "http://"+addr.String()+"/readyz") })
	if err := a.Ready(t.Context()); err != nil {
		t.Error(err)
	}
	stop()
	if a.Ready(t.Context()) == nil {
		t.Error("ready after its end")
	}
}

func ready(t *testing.T, url string) bool {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	res, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var body struct{ Ready bool }
	if err := json.NewDecoder(res.Body).Decode(&body); err != nil {
		t.Fatal(err)
	}
	return body.Ready && res.StatusCode == http.StatusOK
}

func TestConfigurationIsChecked(t *testing.T) {
	e := newEnv(t)
	for _, bad := range []string{
		"NOTIFIER_ALLOWED_NETWORKS=10.0.0.0/33", "NOTIFIER_ALLOWED_NETWORKS=x", "SERVICE_KEY=x",
	} {
		cfg, err := service.Load[app.Config](append(slices.Clone(e.environ), bad))
		if err != nil {
			continue
		}
		if a, err := app.New(t.Context(), cfg); err == nil {
			t.Errorf("%s is accepted", bad)
			_ = a.Close(t.Context())
		}
	}
	cfg, err := service.Load[app.Config](append(slices.Clone(e.environ), "NOTIFIER_ALLOWED_NETWORKS=127.0.0.0/8,10.1.2.3"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.LogOutput, cfg.HTTP.Allowed = t.Output(), []netip.Prefix{}
	a, err := app.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// A failed start names every problem of the service's own settings and of the shared ones.
func TestConfigurationProblems(t *testing.T) {
	cfg, err := service.Load[app.Config]([]string{"NOTIFIER_ALLOWED_NETWORKS=nowhere"})
	if err != nil {
		t.Fatal(err)
	}
	a, err := app.New(t.Context(), cfg)
	if err == nil {
		_ = a.Close(t.Context())
		t.Fatal("started")
	}
	for _, want := range []string{"NOTIFIER_ALLOWED_NETWORKS: ", "Set POSTGRES_URL."} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in:\n%v", want, err)
		}
	}
}
