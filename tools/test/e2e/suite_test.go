package e2e

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/testenv"
	"waitlist.internal/libs/token"
	accountdb "waitlist.internal/services/account/postgres"
	admindb "waitlist.internal/services/admin-analytics/postgres"
	billingdb "waitlist.internal/services/billing/postgres"
	messagingdb "waitlist.internal/services/messaging/postgres"
	"waitlist.internal/services/messaging/providers/resendtest"
	notifierdb "waitlist.internal/services/notifier/postgres"
	signupdb "waitlist.internal/services/signup/postgres"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// TestSuite runs all groups of tests and then checks that every documented answer has occurred.
func TestSuite(t *testing.T) {
	contract, err := LoadContract()
	if err != nil {
		t.Fatal(err)
	}
	s := &suite{contract: contract, coverage: new(Coverage), binary: Build(t), names: newNameServer(t)}
	groups := []struct {
		name string
		run  func(*testing.T, *deployment)
	}{
		{"http", testHTTP},
		{"accounts", testAccounts},
		{"waitlists", testWaitlists},
		{"settings", testSettings},
		{"signups", testSignups},
		{"tokens", testTokens},
		{"tiers", testTiers},
		{"team", testTeam},
		{"admin", testAdmin},
		{"transfer", testTransfer},
		{"analytics", testAnalytics},
		{"templates", testTemplates},
		{"blasts", testBlasts},
		{"abuse of accounts", testAccountAbuse},
		{"sdk", testSDK},
	}
	// This runs after the parallel groups have ended.
	t.Cleanup(func() {
		if t.Failed() || testing.Short() || !wholeRun() {
			return
		}
		missing := s.coverage.Missing(contract.Operations(), unreachable)
		if len(missing) > 0 {
			t.Errorf("no test has produced these answers of the contract:\n%s", strings.Join(missing, "\n"))
		}
	})
	for _, deployed := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"everyday", func(t *testing.T) {
			t.Helper()
			d := s.deploy(t, nil)
			for _, g := range groups {
				t.Run(g.name, func(t *testing.T) { g.run(t, d) })
			}
		}},
		{"audit", s.testAudit},
		{"deletion", s.testDeletion},
		{"mails", s.testMails},
		{"cors", s.testConfiguredOrigin},
		{"trial", s.testTrialEnds},
		{"rate", s.testRateLimit},
		{"bucket", s.testDefaultBucket},
		{"outages", s.testOutages},
		{"restart", s.testRestart},
		{"verified", s.testVerifiedOnly},
		{"matrix", s.testMatrix},
		{"notifications", s.testNotifications},
		{"notifications killed", s.testNotificationsKilled},
		{"transfer interrupted", s.testTransferInterrupted},
		{"domains", s.testDomains},
		{"resend", s.testResend},
		{"blast cap", s.testBlastCap},
		{"abuse_mail", s.testAbuseMail},
		{"billing", s.testBilling},
		{"payments", s.testPayments},
		{"fields", s.testFields},
		{"abuse of the edge", s.testEdgeAbuse},
		{"forged events", s.testForgedEvents},
		{"abuse of referrals", s.testReferralAbuse},
		{"traces", s.testTraces},
	} {
		// Each deployment has its own program, database and topics.
		t.Run(deployed.name, func(t *testing.T) {
			t.Parallel()
			deployed.run(t)
		})
	}
}

// unreachable lists, by operation, the answers that no test can cause.
func unreachable(operation, outcome string) bool {
	// The keys are in the process, so no outage makes this fail.
	return operation == "getKeys" && outcome == "500 INTERNAL_ERROR"
}

// suite is what all deployments share.
type suite struct {
	contract *Contract
	coverage *Coverage
	binary   string
	// names is the name server of every deployment that has none of its own.
	names *nameServer
}

// deployment is a running program.
type deployment struct {
	*suite
	server *Server
	// options are the Options that server was started with.
	options Options
	// db is the URL of the program's database.
	db string
	// links creates and checks the tokens of mail links, as the program does.
	links *token.Ring
}

// deploy starts the program with its own database and a rate limit that no test reaches. env overrides the defaults.
func (s *suite) deploy(t *testing.T, env map[string]string) *deployment {
	t.Helper()
	d := &deployment{suite: s}
	secret := make([]byte, 32)
	_, _ = rand.Read(secret)
	keys := "e2e:" + base64.StdEncoding.EncodeToString(secret)
	var err error
	if d.links, err = token.ParseRing(keys); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{
		"RATE_LIMIT_RPS": "100000", "RATE_LIMIT_BURST": "100000",
		"TRUSTED_PROXIES": "127.0.0.1/32", "TOKEN_KEYS": keys, "DNS_RESOLVER": s.names.addr,
		"RESEND_WEBHOOK_SECRETS": resendtest.Secret, "STRIPE_WEBHOOK_SECRETS": paymentSecret + ",whsec_the_one_before",
	}
	// A run against another broker than the embedded one names its brokers or its kind; see testenv.
	if os.Getenv("TEST_KAFKA_BROKERS") != "" || os.Getenv("TEST_KAFKA") == "apache" {
		brokers, prefix := testenv.Kafka(t)
		all["KAFKA_BROKERS"], all["KAFKA_TOPIC_PREFIX"] = strings.Join(brokers, ","), prefix
	}
	maps.Copy(all, env)
	if all["POSTGRES_URL"] == "" {
		all["POSTGRES_URL"] = database(t)
	}
	d.db = all["POSTGRES_URL"]
	d.options = Options{Binary: s.binary, Dir: DataDir(t), Env: all}
	d.server = Run(t, d.options)
	return d
}

// database returns a database with the schemas of all services, so that no start has to migrate. A program that replaces the
// standalone one gets an empty database: it migrates by itself and may have other schemas or owners.
func database(t *testing.T) string {
	t.Helper()
	if os.Getenv(BinaryVariable) != "" {
		return testenv.Postgres(t)
	}
	return testenv.MigratedURL(t,
		testenv.Schema{Name: "account", Migrations: accountdb.Migrations},
		testenv.Schema{Name: admindb.Schema, Migrations: admindb.Migrations},
		testenv.Schema{Name: "billing", Migrations: billingdb.Migrations},
		testenv.Schema{Name: "messaging", Migrations: messagingdb.Migrations},
		testenv.Schema{Name: "notifier", Migrations: notifierdb.Migrations},
		testenv.Schema{Name: "signup", Migrations: signupdb.Migrations},
	)
}

// restart starts a stopped or killed program again, at the same address and on the same data.
func (d *deployment) restart(t *testing.T) {
	t.Helper()
	d.options.Addr = d.server.Addr
	d.server = Run(t, d.options)
}

// count returns the number of a waitlist's signups, from the database.
func (d *deployment) count(t testing.TB, waitlist string) int {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), d.db)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var n int
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM signup.signup WHERE waitlist_id = $1", waitlist).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// client returns a client with its own network address.
func (d *deployment) client(t testing.TB) *Client {
	t.Helper()
	c := NewClient(d.server.URL, d.contract, d.coverage)
	c.Address = fmt.Sprintf("10.%d.%d.%d", random(250)+1, random(250)+1, random(250)+1)
	t.Cleanup(c.Close)
	return c
}

// exec changes the database directly, for states that no endpoint produces yet.
func (d *deployment) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), d.db)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	tag, err := conn.Exec(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	if tag.RowsAffected() == 0 {
		t.Fatalf("no row was changed by %s", sql)
	}
}

// setTier changes an account directly to what billing would make of it: active in a tier, or inactive. The public side of
// its waitlists learns of the change with the owner's next call.
func (d *deployment) setTier(t testing.TB, o *owner, tier, status string) {
	t.Helper()
	d.exec(t, `UPDATE account.account SET tier = $2, status = $3, trial = false, valid_until = NULL,
		entitlement_version = entitlement_version + 1 WHERE email = $1`, o.email, tier, status)
	o.Do(t, Get("/waitlists").As(o.token))
}

// endTrial makes an account directly one whose trial ended a second ago.
func (d *deployment) endTrial(t testing.TB, o *owner) {
	t.Helper()
	d.exec(t, `UPDATE account.account SET trial = true, status = 'trialing', valid_until = now() - interval '1 second'
		WHERE email = $1`, o.email)
}

// number returns a signup's number within its waitlist, which its tokens are bound to.
func (d *deployment) number(t testing.TB, waitlist, email string) int64 {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), d.db)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var n int64
	if err := conn.QueryRow(t.Context(), "SELECT number FROM signup.signup WHERE waitlist_id = $1 AND email = $2", waitlist,
		email).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// unsubscribeToken returns the token that mails to a signup carry.
func (d *deployment) unsubscribeToken(t testing.TB, waitlist, email string) string {
	t.Helper()
	return d.links.Mint(token.Unsubscribe, token.SignupSubject(waitlist, d.number(t, waitlist, email)), time.Time{})
}

// owner is a registered account with a session.
type owner struct {
	*Client
	email, password, key, token, refresh string
	// reset is a token from a password reset mail; "" until one is requested.
	reset string
}

// password is what every account has at first.
const password = "correct horse battery"

// owner registers an account and logs in.
func (d *deployment) owner(t testing.TB) *owner {
	t.Helper()
	return d.register(t, address("owner"))
}

// register registers and logs in an owner with an address.
func (d *deployment) register(t testing.TB, email string) *owner {
	t.Helper()
	o := &owner{Client: d.client(t), email: email, password: password}
	o.key = o.Do(t, Post("/auth/register", Obj{"email": o.email, "password": o.password})).Want(http.StatusCreated).Str("api_key")
	o.login(t)
	return o
}

func (o *owner) login(t testing.TB) {
	t.Helper()
	r := o.Do(t, Post("/auth/login", Obj{"email": o.email, "password": o.password})).Want(http.StatusOK)
	o.token, o.refresh = r.Str("id_token"), r.Str("refresh_token")
}

// waitlist creates a waitlist with settings, which may be nil, and returns its id.
func (o *owner) waitlist(t testing.TB, settings Obj) string {
	t.Helper()
	body := Obj{"name": "Launch"}
	if settings != nil {
		body["settings"] = settings
	}
	return o.Do(t, Post("/waitlists", body).As(o.token)).Want(http.StatusCreated).Str("waitlist_id")
}

// set changes settings.
func (o *owner) set(t testing.TB, waitlist string, settings Obj) *Response {
	t.Helper()
	return o.Do(t, Patch("/waitlists/"+waitlist, Obj{"settings": settings}).As(o.token)).Want(http.StatusOK)
}

// join signs an address up.
func (c *Client) join(t testing.TB, waitlist, email string, more ...Obj) *Response {
	t.Helper()
	return c.Do(t, signup(waitlist, email, more...)).Want(http.StatusCreated)
}

func signup(waitlist, email string, more ...Obj) Request {
	body := Obj{"email": email}
	for _, m := range more {
		maps.Copy(body, m)
	}
	return Post("/public/waitlists/"+waitlist+"/signups", body)
}

// status looks a signup up.
func (c *Client) status(t testing.TB, waitlist, email string) *Response {
	t.Helper()
	return c.Do(t, Get(statusPath(waitlist, email)))
}

func statusPath(waitlist, email string) string {
	return "/public/waitlists/" + waitlist + "/signups/" + url.PathEscape(email)
}

// address returns an unused email address.
func address(name string) string {
	return name + "-" + strings.ToLower(rand.Text()[:12]) + "@example.com"
}

func random(n int64) int64 {
	i, err := rand.Int(rand.Reader, big.NewInt(n))
	if err != nil {
		panic(err) // never happens since Go 1.24
	}
	return i.Int64()
}

// claims decodes the payload of a JWT without verifying it.
func claims(t testing.TB, jwt string) Obj {
	t.Helper()
	parts := strings.Split(jwt, ".")
	if len(parts) != 3 {
		t.Fatalf("not a JWT: %q", jwt)
	}
	b, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	var c Obj
	if err := json.Unmarshal(b, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

const (
	unknownID = "0193d4a2-5c1e-7a41-9b7c-7a2d90f0c1de"
	emoji     = "🚀"
)

// wholeRun reports whether -run selects the whole suite.
func wholeRun() bool { return !strings.Contains(flag.Lookup("test.run").Value.String(), "/") }
