package http_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"waitlist.internal/libs/access"
	"waitlist.internal/libs/audit"
	"waitlist.internal/libs/pg"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/libs/token"
	"waitlist.internal/services/account"
	"waitlist.internal/services/account/postgres"
)

// entries returns the entries of a page of the trail, one line each.
func entries(a answer) (lines []string) {
	list, _ := a.body["entries"].([]any)
	for _, e := range list {
		e, _ := e.(map[string]any)
		lines = append(lines, fmt.Sprint(e["action"], " ", e["role"], " ", e["credential"], " ", e["target"], " ", e["request_id"]))
	}
	return lines
}

func requestID(id string) option { return func(r *http.Request) { r.Header.Set("X-Request-Id", id) } }

// TestTrail: each effect writes one entry into its owner's trail; what fails writes none.
func TestTrail(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	k := e.register("owner@example.com")
	memberKey := e.register("member@example.com")
	e.exec(`UPDATE account SET email_verified_at = now() WHERE email = 'member@example.com'`)
	e.exec(`DELETE FROM audit`)
	lookup := func(key string) string { return strings.TrimPrefix(key, "wl_live_")[:13] }
	var owner string
	if err := e.pool.QueryRow(t.Context(), `SELECT id FROM account WHERE email = 'owner@example.com'`).Scan(&owner); err != nil {
		t.Fatal(err)
	}
	verify := e.tokens.MintAccount(token.VerifyAccount, owner, 1, e.clock.Now().Add(time.Hour))

	n := 0
	// step sends a request and checks what it adds to the owner's trail.
	step := func(method, path string, body any, status int, want string, options ...option) answer {
		t.Helper()
		n++
		id := fmt.Sprint("step-", n)
		a := e.send(method, "/v1"+path, body, append(options, requestID(id))...)
		if a.status != status {
			t.Fatalf("%s %s: %d %s", method, path, a.status, a.raw)
		}
		var lines []string
		for _, line := range entries(e.do(http.MethodGet, "/audit", nil, key(k)).expect(t, 200, "")) {
			if line, ours := strings.CutSuffix(line, " "+id); ours {
				lines = append(lines, line)
			}
		}
		if got := strings.Join(lines, "; "); !regexp.MustCompile("^" + want + "$").MatchString(got) {
			t.Fatalf("%s %s: entries %q, want %q", method, path, got, want)
		}
		return a
	}
	post := func(path string, body any, status int, want string, options ...option) answer {
		t.Helper()
		return step(http.MethodPost, path, body, status, want, options...)
	}
	const session = `[0-9a-f-]{36}`
	post("/auth/login", pair("owner@example.com", "wrong password"), 401, "auth.login_refused <nil> <nil> <nil>")
	post("/auth/login", pair("nobody@example.com", "wrong password"), 401, "")
	post("/auth/login", pair("owner@example.com", "x"), 401, "auth.login_refused <nil> <nil> <nil>")
	a := post("/auth/login", pair("owner@example.com", password), 200, "auth.login owner "+session+" "+session)
	spent := a.str("refresh_token")
	post("/auth/refresh", map[string]string{"refresh_token": spent}, 200, "")
	post("/auth/refresh", map[string]string{"refresh_token": "unknown"}, 401, "")
	post("/auth/refresh", map[string]string{"refresh_token": spent}, 401, "auth.refresh_refused <nil> <nil> "+session)
	post("/auth/refresh", map[string]string{"refresh_token": spent}, 401, "")

	a = post("/auth/login", pair("owner@example.com", password), 200, "auth.login .*")
	post("/auth/logout", map[string]string{"refresh_token": a.str("refresh_token")}, 204, "auth.session_ended owner "+session+" "+session)
	post("/auth/logout", map[string]string{"refresh_token": a.str("refresh_token")}, 204, "")
	post("/auth/login", pair("owner@example.com", password), 200, "auth.login .*")
	id := strings.Fields(e.sessions(key(k))[0])[0]
	step(http.MethodDelete, "/auth/sessions/"+id, nil, 204, "auth.session_ended owner "+lookup(k)+" "+id, key(k))
	step(http.MethodDelete, "/auth/sessions/"+id, nil, 404, "", key(k))

	post("/auth/verify-email", map[string]string{"token": verify, "password": "wrong"}, 401, "auth.login_refused <nil> <nil> <nil>")
	post("/auth/verify-email", map[string]string{"token": verify, "password": "wrong"}, 401,
		"auth.login_refused <nil> "+lookup(memberKey)+" <nil>", key(memberKey))
	post("/auth/verify-email", map[string]string{"token": verify}, 200, "account.verified owner "+lookup(k)+" <nil>", key(k))
	post("/auth/verify-email", map[string]string{"token": verify}, 400, "", key(k))

	member := map[string]any{"email": "member@example.com", "role": "admin"}
	post("/team/invite", member, 201, "team.invited owner "+lookup(k)+` \d+`, key(k))
	post("/team/invite", member, 409, "", key(k))
	step(http.MethodDelete, "/team/member@example.com", nil, 204, "team.removed owner "+lookup(k)+` \d+`, key(k))
	step(http.MethodDelete, "/team/member@example.com", nil, 404, "", key(k))
	post("/team/invite", member, 201, "team.invited owner .*", key(k))
	step(http.MethodDelete, "/team/memberships/owner@example.com", nil, 204, "team.left admin "+lookup(memberKey)+` \d+`, key(memberKey))

	change := map[string]string{"current_password": "wrong", "password": "a new password"}
	post("/auth/change-password", change, 400, "auth.login_refused owner "+lookup(k)+" <nil>", key(k))
	change["current_password"] = password
	post("/auth/change-password", change, 204, "auth.password_changed owner "+lookup(k)+" <nil>", key(k))
	reset := e.tokens.MintAccount(token.ResetPassword, owner, 2, e.clock.Now().Add(time.Hour))
	post("/auth/reset-password", map[string]string{"token": reset, "password": password}, 204, "auth.password_reset owner <nil> <nil>")
	post("/auth/reset-password", map[string]string{"token": reset, "password": password}, 400, "")

	a = post("/auth/login", pair("owner@example.com", password), 200, "auth.login .*")
	post("/auth/regenerate-api-key", nil, 403, "", key(k))
	// step reads the trail with k, which this replaces.
	fresh := e.post("/regenerate-api-key", nil, bearer(a.str("id_token"))).expect(t, 200, "").str("api_key")
	if got := entries(e.do(http.MethodGet, "/audit?limit=1", nil, key(fresh))); !strings.HasPrefix(got[0], "auth.api_key_rotated owner ") ||
		!strings.Contains(got[0], " "+lookup(fresh)+" ") {
		t.Errorf("entries %q", got)
	}
	// Nothing of this is in another's trail, whatever the role, and no address in any.
	if got := entries(e.do(http.MethodGet, "/audit", nil, key(memberKey)).expect(t, 200, "")); len(got) != 0 {
		t.Errorf("the member's trail: %q", got)
	}
	if n := e.count(`SELECT count(*) FROM audit a WHERE a::text LIKE '%@%' OR a::text LIKE '%example%'`); n != 0 {
		t.Errorf("%d entries with an address", n)
	}

	e.do(http.MethodDelete, "/me", nil, key(fresh)).expect(t, 204, "")
	if n := e.count(`SELECT count(*) FROM audit WHERE owner_id = '` + owner + `'`); n != 0 {
		t.Errorf("%d entries after the deletion", n)
	}
	// The other account's trail begins with its registration.
	third := e.register("third@example.com")
	got := entries(e.do(http.MethodGet, "/audit", nil, key(third)))
	if len(got) != 1 || !strings.HasPrefix(got[0], "account.registered owner ") {
		t.Errorf("entries %q", got)
	}
}

// Guesses from everywhere fill a trail up to a bound.
func TestRefusalsAreBounded(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.register("owner@example.com")
	for i := range account.CountedElsewhere + 20 {
		e.post("/login", pair("owner@example.com", "wrong password"), from(fmt.Sprintf("192.0.2.%d", i))).
			expect(t, 401, "AUTHENTICATION_REQUIRED")
	}
	if n := e.count(`SELECT count(*) FROM audit WHERE action = 'auth.login_refused'`); n != account.CountedElsewhere {
		t.Errorf("%d entries, want %d", n, account.CountedElsewhere)
	}
}

// broken is a trail that does not answer.
type broken struct{}

func (broken) Entries(context.Context, audit.Query) ([]audit.Entry, error) {
	return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
}

// TestTrailPages: pages of any length over three services give every entry once, newest
// first.
func TestTrailPages(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	k := key(e.register("owner@example.com"))
	actor, err := e.svc.Authorize(t.Context(), "", e.register("other@example.com"))
	if err != nil {
		t.Fatal(err)
	}
	var owner string
	if err := e.pool.QueryRow(t.Context(), `SELECT id FROM account WHERE email = 'owner@example.com'`).Scan(&owner); err != nil {
		t.Fatal(err)
	}
	tables := []*audit.Table{{Pool: e.pool}}
	for range 2 {
		tables = append(tables, &audit.Table{Pool: testenv.Migrated(t, account.Name, 2, postgres.Migrations)})
	}
	e.cfg.Trails = nil
	for _, trail := range tables {
		e.cfg.Trails = append(e.cfg.Trails, trail)
	}
	e.serve()
	e.exec(`DELETE FROM audit`)
	actions := []audit.Action{audit.Login, audit.SignupMoved, audit.SignupRemoved}
	want := map[audit.Action][]string{}
	write := func() {
		i := rand.IntN(len(actions))
		for _, id := range []string{owner, actor.AccountID} {
			entry := audit.By(access.Actor{}, id, actions[i], uuid.NewString())
			err := pg.InTx(t.Context(), tables[rand.IntN(3)].Pool, func(tx pgx.Tx) error { return audit.Insert(t.Context(), tx, entry) })
			if err != nil {
				t.Fatal(err)
			}
			if id == owner {
				want[""], want[actions[i]] = append(want[""], entry.Target), append(want[actions[i]], entry.Target)
			}
		}
	}
	for range 120 {
		write()
	}
	for action := range want {
		for _, limit := range []int{1, 2, 7, 50, 100} {
			wanted := slices.Clone(want[action])
			slices.Reverse(wanted)
			var got []string
			for last, pages := "", 0; ; pages++ {
				q := url.Values{"limit": {fmt.Sprint(limit)}, "last_key": {last}, "action": {string(action)}}
				a := e.do(http.MethodGet, "/audit?"+q.Encode(), nil, k).expect(t, 200, "")
				list, _ := a.body["entries"].([]any)
				for _, entry := range list {
					entry, _ := entry.(map[string]any)
					target, _ := entry["target"].(string)
					got = append(got, target)
				}
				if n, _ := a.body["count"].(float64); int(n) != len(list) || len(list) > limit {
					t.Fatalf("count %v of %d entries, limit %d", n, len(list), limit)
				}
				last = a.str("last_key")
				if last == "" || pages > 200 {
					break
				}
				if pages == 1 {
					write() // newer ones do not disturb
				}
			}
			if !slices.Equal(got, wanted) {
				t.Fatalf("action %q, limit %d: %d entries, want %d:\n%q\n%q", action, limit, len(got), len(wanted), got, wanted)
			}
		}
	}
	for _, query := range []string{
		"limit=0", "limit=101", "limit=x", "last_key=x", "last_key=" + strings.Repeat("A", 28), "action=auth", "action=auth.login%00",
	} {
		e.do(http.MethodGet, "/audit?"+query, nil, k).expect(t, 400, "VALIDATION_ERROR")
	}
	e.do(http.MethodGet, "/audit", nil).expect(t, 401, "AUTHENTICATION_REQUIRED")

	// A trail with a gap would look whole.
	e.cfg.Trails = append(e.cfg.Trails, broken{})
	e.serve()
	a := e.do(http.MethodGet, "/audit", nil, k).expect(t, 500, "INTERNAL_ERROR")
	if a.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
}

// recordless is a store whose trail cannot be written.
type recordless struct{ *postgres.Store }

var errTrail = errors.New("the trail cannot be written")

type recordlessTx struct{ account.Tx }

func (recordlessTx) Record(context.Context, audit.Entry) error { return errTrail }

func (s recordless) InTx(ctx context.Context, fn func(account.Tx) error) error {
	return s.Store.InTx(ctx, func(tx account.Tx) error { return fn(recordlessTx{tx}) })
}

// Without its entry, no effect happens.
func TestNoEffectWithoutEntry(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	k := key(e.register("owner@example.com"))
	id, refresh := e.login("owner@example.com")
	_, spent := e.login("owner@example.com")
	e.post("/refresh", map[string]string{"refresh_token": spent}).expect(t, 200, "")
	e.send(http.MethodPost, "/v1/team/invite", map[string]string{"email": "member@example.com"}, k).expect(t, 201, "")
	e.cfg.Store = recordless{e.store}
	e.serve()
	digest := func() (sum string) {
		if err := e.pool.QueryRow(t.Context(), `SELECT md5(string_agg(line, E'\n' ORDER BY line)) FROM (
			SELECT a::text FROM account a UNION ALL SELECT s::text FROM session s UNION ALL SELECT r::text FROM refresh_token r
			UNION ALL SELECT m::text FROM team_member m UNION ALL SELECT l::text FROM login_failure l UNION ALL SELECT o::text FROM outbox o
		) AS row (line)`).Scan(&sum); err != nil {
			t.Fatal(err)
		}
		return sum
	}
	before := digest()
	session := strings.Fields(e.sessions(k)[0])[0]
	for _, a := range []answer{
		e.post("/register", pair("new@example.com", password)),
		e.post("/login", pair("owner@example.com", password)),
		e.post("/login", pair("owner@example.com", "wrong password")),
		e.post("/refresh", map[string]string{"refresh_token": spent}),
		e.post("/logout", map[string]string{"refresh_token": refresh}),
		e.do(http.MethodDelete, "/sessions/"+session, nil, k),
		e.post("/change-password", map[string]string{"current_password": password, "password": "a new password"}, k),
		e.post("/regenerate-api-key", nil, bearer(id)),
		e.send(http.MethodPost, "/v1/team/invite", map[string]string{"email": "other@example.com"}, k),
		e.send(http.MethodDelete, "/v1/team/member@example.com", nil, k),
	} {
		a.expect(t, 500, "INTERNAL_ERROR")
	}
	if digest() != before {
		t.Error("something happened without its entry")
	}
}
