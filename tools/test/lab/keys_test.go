//go:build k8s

package lab_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"waitlist.internal/libs/rpc"
	"waitlist.internal/libs/token"
	"waitlist.internal/tools/test/lab"
)

// testKeys replaces keys as docs/operations.md says, from the one ring of links that deployments had first: no request fails, and
// links work on until their key is removed.
func (w *world) testKeys(t *testing.T) {
	s := w.deploy(t, w.chart(), w.images)
	revision := 0
	// roll changes the Secrets and replaces all pods under load.
	roll := func(changes map[string]map[string]string) lab.Report {
		t.Helper()
		revision++
		r := s.load(t, rate, func() {
			for name, data := range changes {
				secret, err := s.Client.CoreV1().Secrets(s.Namespace).Get(t.Context(), name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				secret.StringData = data
				if _, err := s.Client.CoreV1().Secrets(s.Namespace).Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			err := s.Upgrade(t.Context(), w.chart(), "--values", w.images, "--set", fmt.Sprintf("global.revision=keys-%d", revision))
			if err != nil {
				t.Fatal(err)
			}
		})
		if len(r.Failed) > 0 {
			t.Errorf("%d requests failed", len(r.Failed))
		}
		return r
	}
	shared, err := s.Client.CoreV1().Secrets(s.Namespace).Get(t.Context(), "shared", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	one, links, accounts := string(shared.Data["TOKEN_KEYS"]), "new:"+secret(), "a1:"+secret()
	r := roll(map[string]map[string]string{"shared": {"ACCOUNT_TOKEN_KEYS": ""}})
	unsubscribe := s.unsubscribeLink(t, r, one)
	old := s.verifyLink(t, one)
	stale := s.verifyLink(t, one)

	// A replacement of billing's own key goes along.
	public, err := rpc.ParseKeys(string(shared.Data["SERVICE_KEYS"]))
	if err != nil {
		t.Fatal(err)
	}
	seed := make([]byte, ed25519.SeedSize)
	_, _ = rand.Read(seed)
	former := public["billing"]
	next := ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey)
	public["billing"] = append(former[:1:1], next)
	roll(map[string]map[string]string{"shared": {
		"TOKEN_KEYS": one + "," + links, "ACCOUNT_TOKEN_KEYS": one + "," + accounts, "SERVICE_KEYS": public.String(),
	}})
	old(http.StatusOK)
	before := s.verifyLink(t, one)
	roll(map[string]map[string]string{
		"shared":  {"TOKEN_KEYS": links + "," + one, "ACCOUNT_TOKEN_KEYS": accounts + "," + one},
		"billing": {"SERVICE_KEY": base64.StdEncoding.EncodeToString(seed)},
	})
	before(http.StatusOK)
	after := s.verifyLink(t, accounts)
	public["billing"] = []ed25519.PublicKey{next}
	roll(map[string]map[string]string{"shared": {"ACCOUNT_TOKEN_KEYS": accounts, "SERVICE_KEYS": public.String()}})
	after(http.StatusOK)
	// The ring that signup holds signs no link of an account any more, and still its own.
	stale(http.StatusBadRequest)
	s.verifyLink(t, links)(http.StatusBadRequest)
	unsubscribe(http.StatusOK)
}

// secret returns 32 random bytes in base64.
func secret() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b)
	return base64.StdEncoding.EncodeToString(b)
}

func ringOf(t *testing.T, keys string) *token.Ring {
	t.Helper()
	ring, err := token.ParseRing(keys)
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

// verifyLink registers an account and returns a function that opens its verification link, signed by keys, and checks the answer.
func (s *suite) verifyLink(t *testing.T, keys string) func(want int) {
	t.Helper()
	email := fmt.Sprintf("keys-%d@example.com", time.Now().UnixNano())
	account := s.post(t, "/auth/register", "", http.StatusCreated, map[string]string{"email": email, "password": "correct horse battery"})
	key, _ := account["api_key"].(string)
	var id string
	s.read(t, &id, "SELECT id::text FROM account.account WHERE email = $1", email)
	link := ringOf(t, keys).MintAccount(token.VerifyAccount, id, 1, time.Now().Add(time.Hour))
	return func(want int) {
		t.Helper()
		s.post(t, "/auth/verify-email", key, want, map[string]string{"token": link})
	}
}

// unsubscribeLink is verifyLink for a signup of a load.
func (s *suite) unsubscribeLink(t *testing.T, r lab.Report, keys string) func(want int) {
	t.Helper()
	var list string
	s.read(t, &list, "SELECT waitlist_id::text FROM signup.signup WHERE waitlist_id = ANY($1) AND email = $2", r.Waitlists, r.Joined[0])
	var number int64
	s.read(t, &number, "SELECT number FROM signup.signup WHERE waitlist_id = $1 AND email = $2", list, r.Joined[0])
	link := ringOf(t, keys).Mint(token.Unsubscribe, token.SignupSubject(list, number), time.Time{})
	return func(want int) {
		t.Helper()
		s.post(t, "/public/waitlists/"+list+"/unsubscribe", "", want, map[string]string{"email": r.Joined[0], "token": link})
	}
}

// read reads one value from the database.
func (s *suite) read(t *testing.T, into any, sql string, args ...any) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.db)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(into); err != nil {
		t.Fatal(err)
	}
}

// post sends one request, checks the status and returns the answer.
func (s *suite) post(t *testing.T, path, key string, want int, body any) map[string]any {
	t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/v1"+path, bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("x-api-key", key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var answer map[string]any
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil || res.StatusCode != want {
		t.Errorf("POST %s: status %d, want %d: %v, %v", path, res.StatusCode, want, answer, err)
	}
	return answer
}
