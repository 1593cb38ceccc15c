package http_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"

	"waitlist.internal/libs/apierr"
	"waitlist.internal/libs/testenv"
	"waitlist.internal/libs/token"
	"waitlist.internal/libs/views"
	eventv1 "waitlist.internal/proto/gen/waitlist/event/v1"
	"waitlist.internal/services/signup/join"
)

// badBodies are not JSON objects, or longer than a body may be.
var badBodies = []string{
	"", "{", "[]", "null", "1", `{"email":"a@example.com"} {}`, "{\"email\":\"\xff\"}",
	`{"a":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`, `{"x":"` + strings.Repeat("x", 1<<20) + `"}`,
}

// posts are the routes that read a JSON object.
var posts = []string{"/signups", "/signups/a@example.com/verify", "/unsubscribe", "/delete-my-data", "/link"}

// gets are the routes that a signup a@example.com answers with 200.
var gets = []string{"/signups/a@example.com", "/signups/a@example.com/status", "/config", "/count", "/leaderboard"}

func TestJoin(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "pro", join.Config{}, nil)
	first := e.post(t, e.path("/signups"), `{"email":" Ada@Example.com ","first_name":"Ada","last_name":"L"}`)
	first.is(t, http.StatusCreated, `{"email":"ada@example.com","first_name":"Ada","last_name":"L","referral_token":"*",
		"position":1,"referral_count":0,"total_signups":1,"created_at":"`+clockText+`"}`)
	tok, _ := first.object(t)["referral_token"].(string)
	e.join(t, "bob@example.com", strings.ToUpper(tok))
	// The second time is no error, and changes nothing.
	e.post(t, e.path("/signups"), `{"email":"ada@example.com","first_name":"Eve"}`).is(t, http.StatusOK,
		`{"email":"ada@example.com","first_name":"Ada","last_name":"L","referral_token":"`+tok+`",
		"position":1,"referral_count":1,"total_signups":2,"created_at":"`+clockText+`"}`)
	e.set(t, `{"redirect_url":"https://example.com/thanks","position_offset":100}`)
	e.post(t, e.path("/signups"), `{"email":"cyd@example.com"}`).is(t, http.StatusCreated,
		`{"email":"cyd@example.com","first_name":"","last_name":"","referral_token":"*","position":103,"referral_count":0,
		"total_signups":3,"created_at":"`+clockText+`","redirect_url":"https://example.com/thanks"}`)
	e.set(t, `{"hide_position":true}`)
	for status, email := range map[int]string{http.StatusCreated: "dan@example.com", http.StatusOK: "bob@example.com"} {
		e.post(t, e.path("/signups"), `{"email":"`+email+`"}`).is(t, status, `{"email":"`+email+`","first_name":"","last_name":"",
			"referral_token":"*","referral_count":0,"created_at":"`+clockText+`"}`)
	}
	// An id may be written in capitals.
	e.post(t, "/v1/public/waitlists/"+strings.ToUpper(e.list)+"/signups", `{"email":"ada@example.com"}`).
		is(t, http.StatusOK, `{"email":"ada@example.com","first_name":"Ada","last_name":"L","referral_token":"`+tok+`",
		"referral_count":1,"created_at":"`+clockText+`"}`)
}

func TestJoinHoneypot(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "pro", join.Config{}, nil)
	e.set(t, `{"position_offset":5}`)
	e.post(t, e.path("/signups"), `{"email":"Bot@Example.com","first_name":"Bot","website":"https://spam.example"}`).is(t, http.StatusCreated,
		`{"email":"bot@example.com","first_name":"Bot","last_name":"","referral_token":"*","position":6,"referral_count":0,
		"total_signups":1,"created_at":"`+clockText+`"}`)
	e.get(t, e.path("/signups/bot@example.com")).fails(t, http.StatusNotFound, apierr.NotFound)
	e.join(t, "ada@example.com", "") // website was absent
	e.post(t, e.path("/signups"), `{"email":"bob@example.com","website":""}`).object(t)
	e.get(t, e.path("/signups/bob@example.com")).object(t)
	e.set(t, `{"status":"closed"}`)
	e.post(t, e.path("/signups"), `{"email":"bot@example.com","website":"x"}`).fails(t, http.StatusForbidden, apierr.WaitlistClosed)
}

func TestJoinRefused(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "pro", join.Config{}, nil)
	join := func(body string) answer { return e.post(t, e.path("/signups"), body) }
	e.set(t, `{"name_field":"required","phone_field":"required","require_consent":true,
		"custom_questions":[{"id":"size","label":"Size","type":"dropdown","required":true,"options":["S","M"]}]}`)
	join(`{}`).fails(t, http.StatusBadRequest, apierr.ValidationError,
		"email", "first_name", "last_name", "phone", "consent", "custom_answers.size")
	join(`{"email":"no address","first_name":"a","last_name":1,"phone":"`+strings.Repeat("1", 33)+`","timezone":"Mars/Base",
		"utm_source":"`+strings.Repeat("u", 256)+`","consent":"yes","custom_answers":{"size":"L","shape":"round"}}`).
		fails(t, http.StatusBadRequest, apierr.ValidationError,
			"email", "last_name", "phone", "timezone", "utm_source", "consent", "custom_answers.size", "custom_answers.shape")
	e.set(t, `{"allowed_email_domains":["example.com"]}`)
	join(`{"email":"a@example.org"}`).fails(t, http.StatusForbidden, apierr.DomainRestricted)
	e.set(t, `{"exclude_personal_emails":true}`)
	join(`{"email":"a@gmail.com"}`).fails(t, http.StatusBadRequest, apierr.DomainRestricted)
	e.set(t, `{"status":"closed"}`)
	join(`{"email":"a"}`).fails(t, http.StatusForbidden, apierr.WaitlistClosed)
	join(`{"email":`).fails(t, http.StatusBadRequest, apierr.InvalidBody)
}

// TestJoinUnavailable: a full queue is 429, a stopping service 500, and both say
// when to try again.
func TestJoinUnavailable(t *testing.T) {
	t.Parallel()
	full := newEnv(t, "pro", join.Config{MaxQueue: 1}, nil)
	// The lock stops whichever signup is served first.
	tx, err := full.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT FROM waitlist FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	waiting, leave := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, address := range []string{"a@example.com", "b@example.com"} {
		wg.Go(func() {
			full.send(waiting, t, http.MethodPost, full.path("/signups"), fmt.Sprintf(`{"email":%q}`, address))
		})
	}
	testenv.Eventually(t, "one signup waits", func() bool { return full.svc.QueueDepth() == 1 })
	a := full.post(t, full.path("/signups"), `{"email":"c@example.com"}`)
	a.fails(t, http.StatusTooManyRequests, apierr.RateLimited)
	if got := a.header.Get("Retry-After"); got != "1" {
		t.Errorf("429 with Retry-After %q", got)
	}
	leave()
	wg.Wait()
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}

	stopped := newEnv(t, "pro", join.Config{}, nil)
	stopped.stop()
	a = stopped.post(t, stopped.path("/signups"), `{"email":"b@example.com"}`)
	a.fails(t, http.StatusInternalServerError, apierr.InternalError)
	if got := a.header.Get("Retry-After"); got != "1" {
		t.Errorf("500 with Retry-After %q", got)
	}
	stopped.pool.Close()
	for _, path := range gets {
		stopped.get(t, stopped.path(path)).fails(t, http.StatusInternalServerError, apierr.InternalError)
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "pro", join.Config{}, nil)
	e.join(t, "a+b@example.com", e.join(t, "ada@example.com", ""))
	for _, address := range []string{"a+b@example.com", "a%2Bb%40EXAMPLE.com"} {
		for _, path := range []string{"/signups/" + address, "/signups/" + address + "/status"} {
			e.get(t, e.path(path)).is(t, http.StatusOK, `{"email":"a+b@example.com","first_name":"","last_name":"","position":2,
				"referral_count":0,"total_signups":2,"created_at":"`+clockText+`"}`)
		}
	}
	e.set(t, `{"position_offset":7}`)
	if got := e.get(t, e.path("/signups/ada@example.com")).object(t); got["position"] != 8.0 || got["referral_count"] != 1.0 {
		t.Errorf("with an offset: %v", got)
	}
	e.set(t, `{"hide_position":true}`)
	e.get(t, e.path("/signups/ada@example.com")).is(t, http.StatusOK,
		`{"email":"ada@example.com","first_name":"","last_name":"","referral_count":1,"created_at":"`+clockText+`"}`)
	for _, address := range []string{"eve@example.com", "no-address", "%00"} {
		e.get(t, e.path("/signups/"+address)).fails(t, http.StatusNotFound, apierr.NotFound)
	}
}

func TestVerify(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "pro", join.Config{}, nil)
	e.join(t, "a@example.com", "")
	e.join(t, "b@example.com", "")
	tok := e.mint(token.VerifySignup, 1)
	path := e.path("/signups/a@example.com/verify")
	for _, wrong := range []string{"x", e.mint(token.VerifySignup, 2), e.mint(token.Unsubscribe, 1)} {
		e.post(t, path, `{"token":"`+wrong+`"}`).fails(t, http.StatusBadRequest, apierr.InvalidToken)
		e.get(t, path+"?token="+wrong).fails(t, http.StatusBadRequest, apierr.InvalidToken)
	}
	for _, body := range []string{`{}`, `{"token":""}`, `{"token":null}`, `{"token":5}`} {
		e.post(t, path, body).fails(t, http.StatusBadRequest, apierr.ValidationError, "token")
	}
	e.get(t, path).fails(t, http.StatusBadRequest, apierr.ValidationError, "token")
	e.get(t, path+"?token=").fails(t, http.StatusBadRequest, apierr.ValidationError, "token")
	for range 2 {
		if head := e.send(t.Context(), t, http.MethodHead, path+"?token="+tok, ""); head.status != http.StatusOK {
			t.Errorf("HEAD: %+v", head)
		}
	}
	e.post(t, path, `{"token":"`+tok+`"}`).is(t, http.StatusOK, `{"verified":true,"message":"Your email address is verified."}`)
	again := e.get(t, path+"?token="+tok)
	again.is(t, http.StatusOK, `{"verified":true,"message":"*"}`)
	if !strings.Contains(again.body, "already") {
		t.Errorf("the second time: %s", again.body)
	}
	e.get(t, e.path("/signups/b@example.com/verify?token="+e.mint(token.VerifySignup, 2))).is(t, http.StatusOK,
		`{"verified":true,"message":"*"}`)
	e.get(t, e.path("/signups/eve@example.com/verify?token="+tok)).fails(t, http.StatusNotFound, apierr.NotFound)
}

func TestConfig(t *testing.T) {
	t.Parallel()
	const common = `"name":"Launch","headline":"Soon","subheadline":"","hero_image_url":"","name_field":"optional","phone_field":"hidden",
		"custom_questions":[{"id":"q","label":"Why?","type":"text","required":true}],"status":"open","show_social_proof":true,
		"require_consent":false,"consent_text":"","referral_boost":3,`
	const settings = `{"headline":"Soon","referral_boost":3,"position_offset":9,"hide_branding":true,
		"custom_questions":[{"id":"q","label":"Why?","type":"text","required":true}]}`
	for tier, rest := range map[string]string{
		"basic":    `"position_offset":0`,
		"advanced": `"position_offset":9,"hide_branding":true,"hide_position":false`,
		"pro":      `"position_offset":9,"hide_branding":true,"hide_position":false,"require_email_verification":false`,
	} {
		t.Run(tier, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, tier, join.Config{}, nil)
			e.set(t, settings)
			e.get(t, e.path("/config")).is(t, http.StatusOK, `{"waitlist_id":"`+e.list+`","signup_count":null,`+common+rest+`}`)
		})
	}
}

// TestCount: up to ten signups, and where positions are hidden, the public sees
// no count.
func TestCount(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "pro", join.Config{}, nil)
	count := func(want string) {
		t.Helper()
		e.get(t, e.path("/count")).is(t, http.StatusOK, `{"waitlist_id":"`+e.list+`","count":`+want+`}`)
		if got := e.get(t, e.path("/config")).object(t)["signup_count"]; fmt.Sprint(got) != strings.ReplaceAll(want, "null", "<nil>") {
			t.Errorf("the configuration shows %v, want %s", got, want)
		}
	}
	for i := range 10 {
		e.join(t, fmt.Sprintf("p%d@example.com", i), "")
	}
	count("null")
	e.join(t, "p10@example.com", "")
	count("11")
	e.set(t, `{"hide_position":true}`)
	count("null")
}

func TestLeaderboard(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "pro", join.Config{}, nil)
	board := func(query, want string) {
		t.Helper()
		e.get(t, e.path("/leaderboard"+query)).is(t, http.StatusOK, `{"waitlist_id":"`+e.list+`","leaderboard":[`+want+`]}`)
	}
	board("", "")
	var referrers []string
	for i := range 12 {
		referrers = append(referrers, e.join(t, fmt.Sprintf("p%d@example.com", i), ""))
	}
	for i, tok := range referrers {
		e.join(t, fmt.Sprintf("q%d@example.com", i), tok)
	}
	e.join(t, "r@example.com", referrers[5])
	var rows []string
	for rank := 2; rank <= 12; rank++ {
		rows = append(rows, fmt.Sprintf(`{"rank":%d,"referral_count":1}`, rank))
	}
	best := `{"rank":1,"referral_count":2},`
	board("?limit=1", strings.TrimSuffix(best, ","))
	board("", best+strings.Join(rows[:9], ","))
	board("?limit=", best+strings.Join(rows[:9], ","))
	board("?limit=50", best+strings.Join(rows, ","))
	for _, limit := range []string{"0", "51", "-1", "many", "1.5"} {
		e.get(t, e.path("/leaderboard?limit="+limit)).fails(t, http.StatusBadRequest, apierr.ValidationError, "limit")
	}
}

func TestUnsubscribeAndDelete(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "pro", join.Config{}, nil)
	e.join(t, "a@example.com", "")
	e.join(t, "b@example.com", "")
	a, b := e.mint(token.Unsubscribe, 1), e.mint(token.Unsubscribe, 2)
	form := func(email, tok string) string { return fmt.Sprintf(`{"email":%q,"token":%q}`, email, tok) }
	for _, path := range []string{"/unsubscribe", "/delete-my-data"} {
		for body, fields := range map[string][]string{
			`{}`: {"email", "token"}, `{"email":"a@example.com"}`: {"token"}, `{"email":null,"token":"x"}`: {"email"}, `{"email":1,` +
				`"token":""}`: {"email", "token"},
		} {
			e.post(t, e.path(path), body).fails(t, http.StatusBadRequest, apierr.ValidationError, fields...)
		}
		e.post(t, e.path(path), form("a@example.com", b)).fails(t, http.StatusForbidden, apierr.InvalidToken)
		e.post(t, e.path(path), form("eve@example.com", a)).fails(t, http.StatusNotFound, apierr.NotFound)
	}
	out := e.post(t, e.path("/unsubscribe"), form("A@example.com", a))
	out.is(t, http.StatusOK, `{"success":true,"message":"*","delete_token":"*"}`)
	remove, _ := out.object(t)["delete_token"].(string)
	e.post(t, e.path("/delete-my-data"), form("a@example.com", a)).fails(t, http.StatusForbidden, apierr.InvalidToken)
	e.post(t, e.path("/delete-my-data"), form("a@example.com", remove)).is(t, http.StatusOK, `{"success":true,"message":"*"}`)
	e.post(t, e.path("/delete-my-data"), form("a@example.com", remove)).fails(t, http.StatusNotFound, apierr.NotFound)
	e.get(t, e.path("/signups/a@example.com")).fails(t, http.StatusNotFound, apierr.NotFound)
}

// TestMailLink: whoever asks learns nothing; the event does.
func TestMailLink(t *testing.T) {
	t.Parallel()
	at := clock
	e := newEnv(t, "pro", join.Config{Now: func() time.Time { return at }}, nil)
	e.join(t, "a@example.com", "")
	e.join(t, "b@example.com", "")
	e.exec(t, "TRUNCATE outbox")
	var answers []string
	for _, email := range []string{" B@Example.com", "nobody@example.com"} {
		a := e.post(t, e.path("/link"), fmt.Sprintf(`{"email":%q}`, email))
		a.is(t, http.StatusAccepted, `{"message":"*"}`)
		answers = append(answers, a.body)
	}
	if answers[0] != answers[1] {
		t.Errorf("the answers differ: %q", answers)
	}
	rows, err := e.pool.Query(t.Context(), "SELECT unnest(payloads) FROM outbox ORDER BY id")
	if err != nil {
		t.Fatal(err)
	}
	payloads, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		t.Fatal(err)
	}
	var numbers []int64
	for _, raw := range payloads {
		var ev eventv1.Event
		if err := proto.Unmarshal(raw, &ev); err != nil {
			t.Fatal(err)
		}
		asked := ev.GetLinkRequested()
		if asked.GetWaitlistId() != e.list || asked.GetOwnerId() != e.owner {
			t.Errorf("event %v", &ev)
		}
		numbers = append(numbers, asked.GetNumber())
	}
	if !slices.Equal(numbers, []int64{2, 0}) {
		t.Errorf("numbers %v", numbers)
	}
	for _, body := range []string{`{}`, `{"email":5}`, `{"email":"nobody"}`} {
		e.post(t, e.path("/link"), body).fails(t, http.StatusBadRequest, apierr.ValidationError, "email")
	}
	nowhere := "/v1/public/waitlists/" + uuid.NewString() + "/link"
	for _, body := range []string{`{}`, `{"email":"nobody"}`, `{"email":"a@example.com"}`} {
		e.post(t, nowhere, body).fails(t, http.StatusNotFound, apierr.NotFound)
	}
	// Three of twenty are used up.
	for range 17 {
		e.post(t, e.path("/link"), `{"email":"a@example.com"}`).is(t, http.StatusAccepted, `{"message":"*"}`)
	}
	over := e.post(t, e.path("/link"), `{"email":"a@example.com"}`)
	over.fails(t, http.StatusTooManyRequests, apierr.RateLimited)
	if after := over.header.Get("Retry-After"); after != "600" {
		t.Errorf("Retry-After %s", after)
	}
	at = at.Add(10 * time.Minute)
	e.post(t, e.path("/link"), `{"email":"a@example.com"}`).is(t, http.StatusAccepted, `{"message":"*"}`)
}

// TestOneClick: a mail client sends a form, and address and token in the query.
func TestOneClick(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "pro", join.Config{}, nil)
	e.join(t, "a@example.com", "")
	tok := e.mint(token.Unsubscribe, 1)
	const line = "List-Unsubscribe=One-Click"
	parts := "--b\r\nContent-Disposition: form-data; name=\"List-Unsubscribe\"\r\n\r\nOne-Click\r\n--b--\r\n"
	for kind, body := range map[string]string{"application/x-www-form-urlencoded": line, "multipart/form-data; boundary=b": parts} {
		post := func(query string) answer {
			return e.post(t, e.path("/unsubscribe"+query), body, "Content-Type", kind)
		}
		post("?email=a@example.com&token="+tok).is(t, http.StatusOK, `{"success":true,"message":"*","delete_token":"*"}`)
		post("").fails(t, http.StatusBadRequest, apierr.ValidationError, "email", "token")
		post("?email=a@example.com").fails(t, http.StatusBadRequest, apierr.ValidationError, "token")
		post("?token="+tok).fails(t, http.StatusBadRequest, apierr.ValidationError, "email")
		post("?email=a@example.com&token=x").fails(t, http.StatusForbidden, apierr.InvalidToken)
	}
	// Some mail clients send no body.
	for _, body := range []string{"", "\r\n"} {
		post := func(query string) answer { return e.post(t, e.path("/unsubscribe"+query), body) }
		post("?email=a@example.com&token="+tok).is(t, http.StatusOK, `{"success":true,"message":"*","delete_token":"*"}`)
		post("?email=a@example.com&token=x").fails(t, http.StatusForbidden, apierr.InvalidToken)
		post("?email=a@example.com").fails(t, http.StatusBadRequest, apierr.InvalidBody)
		post("").fails(t, http.StatusBadRequest, apierr.InvalidBody)
	}
	// JSON that mentions it is JSON.
	e.post(t, e.path("/unsubscribe?email=a@example.com&token="+tok), ` {"x":"List-Unsubscribe=One-Click"}`).
		fails(t, http.StatusBadRequest, apierr.ValidationError, "email", "token")
}

// TestUnsubscribeInABrowser: people open the address of a List-Unsubscribe header by hand. It leads to the page with the
// button, and changes nothing.
func TestUnsubscribeInABrowser(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "pro", join.Config{}, nil)
	e.join(t, "a+b@example.com", "")
	path := e.path("/unsubscribe?email=a%2Bb@example.com&token=" + e.mint(token.Unsubscribe, 1))
	a := e.send(t.Context(), t, http.MethodGet, path, "", "Accept", "text/html,application/xhtml+xml,*/*;q=0.8")
	want := formURL + "/unsubscribe?email=a%2Bb%40example.com&token=" + url.QueryEscape(e.mint(token.Unsubscribe, 1)) + "&waitlist=" + e.list
	if a.status != http.StatusSeeOther || a.header.Get("Location") != want {
		t.Errorf("%d to %q, want %q", a.status, a.header.Get("Location"), want)
	}
	var out bool
	if err := e.pool.QueryRow(t.Context(), "SELECT email_opt_out_at IS NOT NULL FROM signup").Scan(&out); err != nil || out {
		t.Errorf("opted out: %v, %v", out, err)
	}
	for _, accept := range []string{"", "*/*", "application/json"} {
		e.send(t.Context(), t, http.MethodGet, path, "", "Accept", accept).fails(t, http.StatusNotFound, apierr.NotFound)
	}
}

// TestBadBodies: INVALID_BODY comes before a waitlist that is not there.
func TestBadBodies(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "pro", join.Config{}, nil)
	for _, path := range posts {
		for _, body := range badBodies {
			e.post(t, e.path(path), body).fails(t, http.StatusBadRequest, apierr.InvalidBody)
		}
	}
	for _, id := range []string{uuid.NewString(), "x"} {
		e.post(t, "/v1/public/waitlists/"+id+"/signups", "{").fails(t, http.StatusBadRequest, apierr.InvalidBody)
	}
	// A body of exactly the limit is read.
	pad := func(n int) string {
		return `{"email":"a@example.com","x":"` + strings.Repeat("x", n-len(`{"email":"a@example.com","x":""}`)) + `"}`
	}
	if a := e.post(t, e.path("/signups"), pad(1<<20)); a.status != http.StatusCreated {
		t.Errorf("1 MiB: %d %s", a.status, a.body)
	}
	e.post(t, e.path("/signups"), pad(1<<20+1)).fails(t, http.StatusBadRequest, apierr.InvalidBody)
}

// TestNoWaitlist: NOT_FOUND comes before the faults of a request's fields.
func TestNoWaitlist(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "pro", join.Config{}, nil)
	e.join(t, "a@example.com", "")
	e.exec(t, `UPDATE waitlist SET deleted_at = now() WHERE id = $1`, e.list)
	for _, id := range []string{e.list, uuid.NewString(), "x", "{" + uuid.NewString() + "}", strings.ReplaceAll(e.list, "-", ""), "%00"} {
		base := "/v1/public/waitlists/" + id
		for _, path := range append(gets, "/leaderboard?limit=0", "/signups/a@example.com/verify", "/signups/a@example.com/verify?token=x") {
			e.get(t, base+path).fails(t, http.StatusNotFound, apierr.NotFound)
		}
		for _, path := range posts {
			for _, body := range []string{`{}`, `{"email":"a@example.com","token":"x"}`} {
				e.post(t, base+path, body).fails(t, http.StatusNotFound, apierr.NotFound)
			}
		}
		e.post(t, base+"/unsubscribe", "List-Unsubscribe=One-Click").fails(t, http.StatusNotFound, apierr.NotFound)
	}
}

// TestMethods: HEAD answers as GET without a body, other methods have no route.
func TestMethods(t *testing.T) {
	t.Parallel()
	e := newEnv(t, "pro", join.Config{}, nil)
	e.join(t, "a@example.com", "")
	do := func(method, path string) answer { return e.send(t.Context(), t, method, e.path(path), "") }
	for _, path := range gets {
		get, head := do(http.MethodGet, path), do(http.MethodHead, path)
		if get.status != http.StatusOK || head.status != get.status || head.body != "" ||
			head.header.Get("Content-Length") != fmt.Sprint(len(get.body)) || head.header.Get("Content-Type") != get.header.Get("Content-Type") {
			t.Errorf("HEAD %s: %d %v; GET: %d", path, head.status, head.header, get.status)
		}
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			do(method, path).fails(t, http.StatusNotFound, apierr.NotFound)
		}
	}
	if head := do(http.MethodHead, "/signups/eve@example.com"); head.status != http.StatusNotFound || head.body != "" {
		t.Errorf("HEAD of nobody: %d %s", head.status, head.body)
	}
	for _, path := range []string{"/signups", "/unsubscribe", "/delete-my-data"} {
		do(http.MethodGet, path).fails(t, http.StatusNotFound, apierr.NotFound)
	}
	if head := do(http.MethodHead, "/signups"); head.status != http.StatusNotFound {
		t.Errorf("HEAD of a route for POST: %d", head.status)
	}
}

type countedViews struct {
	mu     sync.Mutex
	counts map[string]int64
}

func (v *countedViews) CountViews(_ context.Context, counts []views.Count) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, c := range counts {
		v.counts[c.WaitlistID] += c.Views
	}
	return nil
}

// TestViews: each answered configuration counts as one view, nothing else does.
func TestViews(t *testing.T) {
	t.Parallel()
	store := &countedViews{counts: map[string]int64{}}
	shown := views.New(store, now, nil)
	e := newEnv(t, "pro", join.Config{}, shown)
	stop := testenv.Run(t, shown.Run)
	for range 3 {
		e.get(t, e.path("/config"))
	}
	e.get(t, e.path("/count"))
	e.get(t, "/v1/public/waitlists/"+uuid.NewString()+"/config")
	e.send(t.Context(), t, http.MethodHead, e.path("/config"), "")
	stop()
	store.mu.Lock()
	defer store.mu.Unlock()
	if len(store.counts) != 1 || store.counts[e.list] != 3 {
		t.Errorf("views %v", store.counts)
	}
}
