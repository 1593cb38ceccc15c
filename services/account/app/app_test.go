package app_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/devservers"
	"waitlist.internal/libs/rpc"
	"waitlist.internal/libs/service"
	"waitlist.internal/libs/testenv"
	accessv1 "waitlist.internal/proto/gen/waitlist/access/v1"
	accountv1 "waitlist.internal/proto/gen/waitlist/account/v1"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	signupv1 "waitlist.internal/proto/gen/waitlist/signup/v1"
	"waitlist.internal/services/account/app"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func random() []byte {
	b := make([]byte, 32)
	_, _ = rand.Read(b)
	return b
}

func b64(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

// signup is a fake of the signup service.
type signup struct {
	signupv1.UnimplementedWaitlistServiceServer
	mu     sync.Mutex
	closed []string
}

func (s *signup) CloseOwner(_ context.Context, in *signupv1.CloseOwnerRequest) (*signupv1.CloseOwnerResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = append(s.closed, in.GetOwnerId())
	return &signupv1.CloseOwnerResponse{}, nil
}

func (s *signup) got() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.closed...)
}

// world is the running service and its dependencies.
type world struct {
	t        *testing.T
	app      *app.App
	url      string
	grpc     string
	seeds    map[string][]byte
	signup   *signup
	redis    *devservers.Redis
	postgres *devservers.Postgres
	cfg      app.Config
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// start runs the service until the test ends. With ownPostgres, the service gets its
// own Postgres server, which the test may stop.
func start(t *testing.T, ownPostgres bool) *world {
	t.Helper()
	w := &world{t: t, seeds: map[string][]byte{}, signup: &signup{}}
	keys := rpc.Keys{}
	for _, name := range []string{"account", "signup", "admin-analytics", "billing", "messaging", "notifier"} {
		w.seeds[name] = random()
		keys[name] = []ed25519.PublicKey{w.identity(name).Public()}
	}
	var url string
	if ownPostgres {
		w.postgres = testenv.PostgresServer(t, devservers.PostgresOptions{Settings: testenv.FastPostgres()})
		if err := w.postgres.CreateDatabase(t.Context(), "test"); err != nil {
			t.Fatal(err)
		}
		url = w.postgres.URL("test")
	} else {
		url = testenv.Postgres(t)
	}
	w.redis = testenv.RedisServer(t, devservers.RedisOptions{})
	brokers, prefix := testenv.Kafka(t)

	server := rpc.NewServer("signup", keys, slog.New(slog.DiscardHandler))
	signupv1.RegisterWaitlistServiceServer(server, w.signup)
	sl := listen(t)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(sl) })
	t.Cleanup(func() { server.Stop(); serving.Wait() })

	cfg, err := service.Load[app.Config](nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg.PostgresURL, cfg.RedisURL, cfg.KafkaBrokers, cfg.KafkaTopicPrefix = url, w.redis.URL, brokers, prefix
	cfg.HTTPListener, cfg.GRPCListener = listen(t), listen(t)
	cfg.TrustedProxies = []string{"none"}
	cfg.TokenKeys, cfg.JWTKeys, cfg.AddressKey = "k:"+b64(random()), b64(random()), b64(random())
	cfg.ServiceKey, cfg.ServiceKeys = b64(w.seeds["account"]), keys.String()
	cfg.SignupTarget = sl.Addr().String()
	cfg.LogOutput = io.Discard
	w.cfg = cfg
	w.url, w.grpc = "http://"+cfg.HTTPListener.Addr().String()+"/v1/auth", cfg.GRPCListener.Addr().String()

	if w.app, err = app.New(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections) // after its end
	testenv.Run(t, w.app.Run)
	testenv.Eventually(w.t, "readiness", func() bool { return w.app.Ready(t.Context()) == nil })
	return w
}

func (w *world) identity(name string) *rpc.Identity {
	w.t.Helper()
	id, err := rpc.NewIdentity(name, w.seeds[name])
	if err != nil {
		w.t.Fatal(err)
	}
	return id
}

// client returns a client that calls as another service.
func (w *world) client(id *rpc.Identity) accountv1.AccountServiceClient {
	w.t.Helper()
	conn, err := rpc.Dial(w.grpc, id, "account")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	return accountv1.NewAccountServiceClient(conn)
}

func (w *world) do(method, path, body, apiKey string) (status int, answer map[string]any, header http.Header) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.url+path, bytes.NewBufferString(body))
	if err != nil {
		w.t.Fatal(err)
	}
	if apiKey != "" {
		req.Header.Set("X-Api-Key", apiKey)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &answer); err != nil {
			w.t.Fatalf("%v in %q", err, raw)
		}
	}
	return res.StatusCode, answer, res.Header
}

func (w *world) register(email string) (apiKey string) {
	w.t.Helper()
	status, a, _ := w.do(http.MethodPost, "/register", `{"email": "`+email+`", "password": "correct horse"}`, "")
	apiKey, _ = a["api_key"].(string)
	if status != http.StatusCreated || apiKey == "" {
		w.t.Fatalf("register: %d %v", status, a)
	}
	return apiKey
}

func TestInternalInterface(t *testing.T) {
	t.Parallel()
	w := start(t, false)
	key := w.register("owner@example.com")
	_, login, _ := w.do(http.MethodPost, "/login", `{"email": "owner@example.com", "password": "correct horse"}`, "")
	token, _ := login["id_token"].(string)

	for _, caller := range []string{"billing", "messaging", "signup"} {
		res, err := w.client(w.identity(caller)).Authorize(t.Context(), &accountv1.AuthorizeRequest{BearerToken: token, ApiKey: "ignored"})
		if err != nil {
			t.Fatalf("%s: %v", caller, err)
		}
		actor := res.GetActor()
		if actor.GetEmail() != "owner@example.com" || actor.GetMethod() != accessv1.Method_METHOD_JWT || len(actor.GetGrants()) != 1 ||
			actor.GetGrants()[0].GetRole() != accessv1.Role_ROLE_OWNER || actor.GetGrants()[0].GetEntitlement().GetStatus() != "trialing" {
			t.Errorf("actor %v", actor)
		}
	}
	billing := w.client(w.identity("billing"))
	res, err := billing.Authorize(t.Context(), &accountv1.AuthorizeRequest{ApiKey: key})
	if err != nil || res.GetActor().GetMethod() != accessv1.Method_METHOD_API_KEY {
		t.Fatalf("by key: %v, %v", res, err)
	}
	for name, in := range map[string]*accountv1.AuthorizeRequest{
		"none": {}, "bad token beside a good key": {BearerToken: "x", ApiKey: key}, "bad key": {ApiKey: "x"},
	} {
		if _, err := billing.Authorize(t.Context(), in); !apierr.Is(err, apierr.AuthenticationRequired) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Callers that are not listed or not authenticated are rejected.
	stranger, err := rpc.NewIdentity("billing", random())
	if err != nil {
		t.Fatal(err)
	}
	for name, id := range map[string]*rpc.Identity{"notifier": w.identity("notifier"), "a forged billing": stranger} {
		if _, err := w.client(id).Authorize(t.Context(), &accountv1.AuthorizeRequest{ApiKey: key}); err == nil {
			t.Errorf("%s may authorize", name)
		}
	}
	accountID := res.GetActor().GetAccountId()
	paid := &accountv1.SetEntitlementRequest{AccountId: accountID, Entitlement: &accessv1.Entitlement{
		Tier: "basic", Status: "active", ValidUntil: timestamppb.New(time.Now().Add(time.Hour)), Version: 2,
	}}
	if _, err := w.client(w.identity("messaging")).SetEntitlement(t.Context(), paid); err == nil {
		t.Error("messaging may set entitlements")
	}
	set, err := billing.SetEntitlement(t.Context(), paid)
	if err != nil || set.GetEntitlement().GetTier() != "basic" {
		t.Fatalf("set: %v, %v", set, err)
	}
	if _, me, _ := w.do(http.MethodGet, "/me", "", key); me["subscription_tier"] != "basic" || me["subscription_status"] != "active" {
		t.Errorf("profile %v", me)
	}

	if status, a, _ := w.do(http.MethodDelete, "/me", "", key); status != http.StatusNoContent {
		t.Fatalf("delete: %d %v", status, a)
	}
	if got := w.signup.got(); len(got) != 1 || got[0] != accountID {
		t.Errorf("closed %v", got)
	}
	if _, err := billing.Authorize(
		t.Context(),
		&accountv1.AuthorizeRequest{BearerToken: token},
	); !apierr.Is(
		err,
		apierr.AuthenticationRequired,
	) {
		t.Errorf("after the deletion: %v", err)
	}
	if _, err := billing.SetEntitlement(t.Context(), paid); !apierr.Is(err, apierr.NotFound) {
		t.Errorf("after the deletion: %v", err)
	}
	w.expectEvents(accountID)
}

// expectEvents compares the events in Kafka, in order.
func (w *world) expectEvents(accountID string) {
	w.t.Helper()
	r := kafkago.NewReader(kafkago.ReaderConfig{
		Brokers: w.cfg.KafkaBrokers, GroupID: w.cfg.KafkaTopicPrefix + "test", Topic: w.cfg.KafkaTopicPrefix + "waitlist.accounts.v1",
		StartOffset: kafkago.FirstOffset, MaxWait: time.Second,
	})
	defer func() { _ = r.Close() }()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	var kinds []string
	for range 4 {
		m, err := r.FetchMessage(ctx)
		if err != nil {
			w.t.Fatalf("after %v: %v", kinds, err)
		}
		if string(m.Key) != accountID {
			w.t.Errorf("key %q", m.Key)
		}
		var ev eventv1.Event
		if err := proto.Unmarshal(m.Value, &ev); err != nil {
			w.t.Fatal(err)
		}
		f := ev.ProtoReflect().WhichOneof(ev.ProtoReflect().Descriptor().Oneofs().ByName("payload"))
		kinds = append(kinds, string(f.Name()))
	}
	if got := strings.Join(kinds, " "); got != "entitlement_changed account_verification_requested entitlement_changed account_deleted" {
		w.t.Errorf("events %s", got)
	}
}

// Without Redis, the service works on. Without Postgres, it answers soon.
func TestOutages(t *testing.T) {
	t.Parallel()
	w := start(t, true)
	key := w.register("owner@example.com")
	w.redis.Kill()
	for range 10 {
		if status, a, _ := w.do(
			http.MethodPost,
			"/login",
			`{"email": "owner@example.com", "password": "wrong"}`,
			"",
		); status != http.StatusUnauthorized {
			t.Fatalf("login without Redis: %d %v", status, a)
		}
	}
	if status, a, h := w.do(
		http.MethodPost,
		"/login",
		`{"email": "owner@example.com", "password": "correct horse"}`,
		"",
	); status != http.StatusTooManyRequests ||
		h.Get("Retry-After") == "" {
		t.Fatalf("locked login without Redis: %d %v", status, a)
	}
	w.postgres.Kill()
	for path, method := range map[string]string{"/me": http.MethodGet, "/resend-verification": http.MethodPost} {
		begin := time.Now()
		status, a, h := w.do(method, path, "", key)
		if status != http.StatusInternalServerError || a["error_code"] != "INTERNAL_ERROR" || h.Get("Retry-After") == "" ||
			time.Since(begin) > 5*time.Second {
			t.Errorf("%s without Postgres: %d %v after %v", path, status, a, time.Since(begin))
		}
	}
}

func TestConfiguration(t *testing.T) {
	t.Parallel()
	cfg, err := service.Load[app.Config]([]string{"ID_TOKEN_TTL=0s", "PASSWORD_CONCURRENCY=-1", "ADDRESS_KEY=c2hvcnQ="})
	if err != nil {
		t.Fatal(err)
	}
	_, err = app.New(t.Context(), cfg)
	if err == nil {
		t.Fatal("accepted")
	}
	for _, name := range []string{"JWT_KEYS", "ADDRESS_KEY", "ID_TOKEN_TTL", "PASSWORD_CONCURRENCY", "TRUSTED_PROXIES"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named in %q", name, err)
		}
	}
}
